"""API keys: what is stored, which are accepted, and that a running gateway applies a revocation."""

import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from cloud_gateway.auth import KeyRing
from edgespec.core.errors import ClientError, KeyStoreError


def bearer(key: str) -> str:
    return f"Bearer {key}"


def test_a_new_key_opens_and_carries_its_permission(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    _, plain = ring.create("lab")
    _, offloading = ring.create("lab 2", offload=True)
    assert ring.check(bearer(plain)).name == "lab"
    assert not ring.check(bearer(plain)).offload
    assert ring.check(bearer(offloading)).offload
    assert plain.startswith("es-")
    assert len(plain) >= 40


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic {key}", "{key}", "Bearer {key}x", "Bearer sk-{key}", "Bearer es-nothere0-x",
     "Bearer es-", "Bearer \udcff\udcfe", "Bearer es-00000000-" + "0" * 43],
)  # fmt: skip
def test_everything_else_is_refused_with_401(tmp_path: Path, header: str | None) -> None:
    ring = KeyRing(tmp_path / "keys")
    _, key = ring.create("lab")
    with pytest.raises(ClientError) as refused:
        ring.check(header and header.format(key=key))
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


@pytest.mark.claim("secrets-are-compared-in-constant-time")
def test_a_secret_is_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing(tmp_path / "keys")
    _, key = ring.create("lab")
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: False)
    with pytest.raises(ClientError):
        ring.check(bearer(key))


def test_a_right_secret_with_another_id_is_refused(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    first, key = ring.create("a")
    second, _ = ring.create("b")
    with pytest.raises(ClientError):
        ring.check(bearer(key.replace(first.id, second.id)))


@pytest.mark.claim("neither-key-nor-secret-is-stored-and-the-file-is-private")
def test_neither_key_nor_secret_is_stored_and_the_file_is_private(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    _, key = ring.create("lab")
    stored = ring.file.path.read_text()
    assert key not in stored
    assert key.split("-")[2] not in stored
    assert stat.S_IMODE(ring.file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ring.file.path.parent.stat().st_mode) == 0o700
    assert [p.name for p in ring.file.path.parent.iterdir()] == [ring.file.path.name], "nothing else is left behind"


def test_a_running_gateway_sees_new_and_revoked_keys_at_once(tmp_path: Path) -> None:
    running = KeyRing(tmp_path / "keys")
    admin = KeyRing(tmp_path / "keys")
    record, key = admin.create("lab")
    with pytest.raises(ClientError):
        running.check(bearer(key[:-1]))
    assert running.check(bearer(key), booked=False).id == record.id
    assert running.used == {}, "only a valid key was used"
    assert running.check(bearer(key)).id == record.id
    assert running.used.keys() == {record.id}
    admin.revoke(record.id, now=5)
    with pytest.raises(ClientError):
        running.check(bearer(key))
    assert running.all()[0].revoked == 5
    assert admin.revoke(record.id, now=9).revoked == 5, "the first time stands"


def test_a_key_is_revoked_by_a_name_that_is_its_own(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    first, second = (ring.create("lab")[0] for _ in range(2))
    with pytest.raises(KeyStoreError, match=f"2 API keys are named 'lab': {first.id}, {second.id}; give one's id"):
        ring.revoke("lab")
    assert ring.revoke(first.id).id == first.id
    assert ring.revoke("lab").id == second.id, "the only valid one of the name"
    impostor, _ = ring.create(second.id)
    assert ring.revoke(second.id).id == second.id != impostor.id, "ids have precedence"


def test_revoking_an_unknown_key_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match="no API key 'nope'"):
        KeyRing(tmp_path / "keys").revoke("nope")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2, "keys": []}', '{"keys": [{"id": "x"}]}', "\xff"])
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, content: str) -> None:
    ring = KeyRing(tmp_path / "keys")
    _, key = ring.create("lab")
    ring.file.path.write_text(content, encoding="latin-1")
    for _ in range(2):  # also not on the second try
        with pytest.raises(KeyStoreError, match="damaged"):
            ring.check(bearer(key))
    with pytest.raises(KeyStoreError):
        ring.create("other")
    assert ring.file.path.read_text(encoding="latin-1") == content, "a damaged file is not overwritten"


def test_a_file_open_to_others_is_refused(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    _, key = ring.create("lab")
    ring.file.path.chmod(0o644)
    with pytest.raises(KeyStoreError, match="chmod 600"):
        ring.check(bearer(key))


def test_without_a_file_nobody_gets_in(tmp_path: Path) -> None:
    with pytest.raises(ClientError):
        KeyRing(tmp_path / "keys").check(bearer("es-00000000-secret"))


@pytest.mark.claim("a-list-that-is-away-unpairs-nobody")
def test_a_file_of_keys_that_is_gone_is_no_empty_list(tmp_path: Path) -> None:
    """Neither lets anybody in, but only the second one says that a key is wrong."""
    ring = KeyRing(tmp_path / "keys")
    _, key = ring.create("lab")
    assert ring.check(bearer(key))
    ring.file.path.rename(tmp_path / "away")
    for use in (lambda: ring.check(bearer(key)), lambda: ring.create("other")):
        with pytest.raises(KeyStoreError, match="is gone, and was there before"):
            use()
    assert not ring.file.path.exists()
    (tmp_path / "away").rename(ring.file.path)
    assert ring.check(bearer(key))


def test_a_state_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file")
    with pytest.raises(KeyStoreError, match="is not a folder"):
        KeyRing(tmp_path / "keys").create("lab")


def _create(folder: str) -> None:
    for _ in range(5):
        KeyRing(Path(folder)).create(f"p{os.getpid()}")


def test_processes_that_create_at_once_lose_no_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_create, args=(str(tmp_path / "keys"),)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert len(KeyRing(tmp_path / "keys").all()) == 20
    assert len(json.loads((tmp_path / "keys" / "api-keys.json").read_text())["keys"]) == 20
