"""The machine's own keys: made once, kept private, read from systemd's credentials if present."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from edgespec.core.errors import KeyStoreError
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.signing import verify
from edgespec.shared.files import read_private
from edgespec.shared.server_keys import ServerKeyStore

NOBODY = 65534


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


def test_an_identity_is_made_once_and_signs(tmp_path: Path) -> None:
    identity = ServerKeyStore(tmp_path).identity()
    again = ServerKeyStore(tmp_path).identity()
    assert identity.public == again.public
    verify(identity.public, "kind", b"data", again.sign("kind", b"data"))
    assert ServerKeyStore(tmp_path / "other").identity().public != identity.public


@pytest.mark.claim("no-file-of-the-key-folder-is-open-to-others")
def test_no_file_of_the_key_folder_is_open_to_others(tmp_path: Path) -> None:
    store = ServerKeyStore(tmp_path)
    store.identity()
    store.tls_identity()
    assert store.folder.stat().st_mode & 0o777 == 0o700
    files = sorted(store.folder.iterdir())
    assert [file.name for file in files] == ["identity.key", "tls.pem"]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)


def test_processes_that_start_together_get_one_identity(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from edgespec.shared.server_keys import ServerKeyStore\n"
        "print(ServerKeyStore(Path(sys.argv[1])).identity().public.hex())"
    )
    racing = [
        subprocess.Popen([sys.executable, "-c", script, tmp_path / "state"], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert len({process.communicate(timeout=60)[0] for process in racing}) == 1
    assert all(process.returncode == 0 for process in racing)


def wrong_pems() -> list[bytes]:
    curve = ec.generate_private_key(ec.SECP256R1())
    return [
        b"",
        b"not a key",
        curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pass")),
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ]


@pytest.mark.parametrize("pem", wrong_pems())
def test_a_damaged_key_is_never_replaced_in_silence(tmp_path: Path, pem: bytes) -> None:
    store = ServerKeyStore(tmp_path)
    store.identity()
    (store.folder / "identity.key").write_bytes(pem)
    with pytest.raises(KeyStoreError, match="is not an Ed25519 private key in PEM; restore it from a backup"):
        store.identity()
    assert (store.folder / "identity.key").read_bytes() == pem
    store.tls_identity()
    (store.folder / "tls.pem").write_bytes(pem)
    with pytest.raises(KeyStoreError, match="restore it from a backup"):
        store.tls_identity()


def test_keys_from_systemd_are_used_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ServerKeyStore(tmp_path / "given")
    public = given.identity().public
    pin = given.tls_identity().spki_hash
    (given.folder / "identity.key").chmod(0o440)  # the mode that systemd's access lists result in
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given.folder))
    store = ServerKeyStore(tmp_path / "state")
    assert store.identity().public == public
    assert store.tls_identity().spki_hash == pin
    assert list(store.folder.iterdir()) == []
    (given.folder / "identity.key").unlink()
    assert store.identity().public != public
    (given.folder / "tls.pem").unlink()
    (given.folder / "tls.pem").mkdir()
    with pytest.raises(KeyStoreError, match="credential .* cannot be read"):
        store.tls_identity()


def test_hidden_credentials_and_keys_are_a_sentence(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short_folder / "given").mkdir(mode=0)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(short_folder / "given"))
    if root := os.geteuid() == 0:  # it may read everything
        os.chown(short_folder, NOBODY, -1)
        os.seteuid(NOBODY)
    try:
        store = ServerKeyStore(short_folder / "state")
        assert store.credential("identity.key") == short_folder / "given" / "identity.key", "it may be there"
        with pytest.raises(KeyStoreError, match="credential .* cannot be read .Permission denied"):
            store.identity()
        with pytest.raises(KeyStoreError, match="Permission denied.; run this command as the user who owns it"):
            read_private(short_folder / "given" / "key")
    finally:
        if root:
            os.seteuid(0)


def test_a_key_id_is_short_and_stable() -> None:
    assert key_id(bytes(32)) == "66687aadf862bd77"
