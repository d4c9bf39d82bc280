"""The part in a gateway: on by default within a key, its handlers, its verb, and files that it refuses."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any, cast

import pytest

from cloud_gateway.__main__ import main
from cloud_gateway.auth import KeyRing
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.loop import Engine
from cloud_gateway.part import Serving
from cloud_gateway.parts.campus_store import PART, CampusStoreSection
from cloud_gateway.parts.campus_store.disk import MAGIC, Disk, path_of
from cloud_gateway.parts.campus_store.index import StoredText, backwards
from cloud_gateway.process.config import DaemonSection, schema
from cloud_gateway.process.loading import engine_settings
from cloud_gateway.process.serve import Gateway
from edgespec.core.errors import ConfigError, KeyStoreError
from edgespec.shared.settings import overridden
from edgespec.shared.starting import Starting
from tests.support.echo import MODEL, ByteText
from tests.support.engines import complete
from tests.support.until import until
from tools.doubles.engines import TableTarget

COUNT = 40


def gateway_of(state: Path, **changes: object) -> Gateway:
    composed = schema([PART])
    settings = composed(daemon=DaemonSection(state_dir=str(state)))
    changed = overridden(settings, {f"campus_store.{name}": value for name, value in changes.items()})
    return Gateway(changed, Starting("test"), parts=[PART])


def engine_of(gateway: Gateway) -> Engine:
    """The engine of this gateway, over a double of the target."""
    serving = Serving(MODEL, cast(Any, ByteText()), list)
    recorders = gateway._recordings(serving)
    makers = gateway._makers(serving, {})
    chosen = engine_settings(gateway.settings, gateway.choices, makers, gateway._default_sources())
    return Engine(TableTarget(), None, chosen, recorders=recorders)


async def handled(gateway: Gateway, name: str, **values: str) -> Any:
    return await cast(Any, gateway.running[0].handlers()[name](**values))


@pytest.mark.claim("completions-are-on-disk-only-if-the-operator-asks")
def test_the_defaults_keep_completions_in_memory_alone() -> None:
    assert CampusStoreSection() == CampusStoreSection(megabytes=64, days=0, prompts=False)


@pytest.mark.parametrize("megabytes", [64, 0])
async def test_every_completion_of_a_key_has_the_source(tmp_path: Path, megabytes: int) -> None:
    gateway = gateway_of(tmp_path, megabytes=megabytes, days=30)
    key, _ = gateway.keys.create("alice")
    with pytest.raises(ConfigError, match="still loading"):
        await handled(gateway, "store_status")

    engine = engine_of(gateway)
    engine.start()
    try:
        request = GenerationRequest([1, 2, 3], COUNT, ignore_eos=True, cache_scope=b"alice", key=key.id)
        first, before = await complete(engine, request)
        if megabytes:
            await until(lambda: path_of(tmp_path / "campus_store", key.id).exists())
        again, after = await complete(engine, request)
    finally:
        engine.stop()

    assert again == first
    sizes = [(figure.name, figure.value > 0) for figure in gateway._figures()]
    assert sizes == [("store_bytes", bool(megabytes))]
    if megabytes:
        assert before.usage.sources["store"]["accepted"] == 0 < after.usage.sources["store"]["accepted"]
        assert (await handled(gateway, "store_status"))["keys"][0]["texts"] == 1
        assert await handled(gateway, "store_forget", key=key.id) == {"texts": 1}
    else:
        assert "store" not in after.usage.sources
    await gateway.running[0].close()
    assert not path_of(tmp_path / "campus_store", key.id).exists()


@pytest.mark.claim("completions-are-on-disk-only-if-the-operator-asks")
@pytest.mark.parametrize("changes", [{"days": 0}, {"megabytes": 0, "days": 30}])
def test_files_of_an_earlier_configuration_are_deleted(tmp_path: Path, changes: dict[str, int]) -> None:
    disk = Disk(tmp_path / "campus_store", "model", 100)
    disk.append(StoredText("3kTq9XwZ", 1, backwards([1, 2])))
    gateway_of(tmp_path, **changes)
    assert disk.stored() == []


def encoded(time: int, count: int, tokens: bytes) -> bytes:
    return struct.pack(">III", time, count, zlib.crc32(tokens, time)) + tokens


GOOD = encoded(5, 3, backwards([9, 1, 2]))


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (GOOD + GOOD, 2),
        (GOOD + GOOD[:-1], 1),
        (GOOD + GOOD[:7], 1),
        (GOOD[:20] + b"x" + GOOD[21:] + GOOD, 0),
        (GOOD + encoded(5, 0, b""), 1),
        (GOOD + struct.pack(">III", 5, 2**32 - 1, 0), 1),
        (encoded(5, 2, backwards([9, 100])), 0),
        (encoded(5, 2, backwards([9, 2**32 - 1])), 0),
    ],
    ids=["whole", "cut off", "header cut off", "changed", "empty text", "endless", "no token", "an end as a token"],
)
def test_a_damaged_text_and_what_follows_is_left_out(tmp_path: Path, data: bytes, texts: int) -> None:
    disk = Disk(tmp_path / "texts", "model", 100)
    path = path_of(tmp_path / "texts", "3kTq9XwZ")
    disk.replace("3kTq9XwZ", [])
    path.write_bytes(path.read_bytes() + data)
    assert disk.read("3kTq9XwZ") == [StoredText("3kTq9XwZ", 5, backwards([9, 1, 2]))] * texts


def test_a_file_of_another_model_or_open_to_others_is_not_read(tmp_path: Path) -> None:
    Disk(tmp_path / "texts", "model", 100).append(StoredText("3kTq9XwZ", 5, backwards([9, 1])))
    for model, size in (("other", 100), ("model", 101)):
        assert Disk(tmp_path / "texts", model, size).read("3kTq9XwZ") == []
    path = path_of(tmp_path / "texts", "3kTq9XwZ")
    assert path.read_bytes().startswith(MAGIC)
    path.chmod(0o644)
    with pytest.raises(KeyStoreError, match="open to other users"):
        Disk(tmp_path / "texts", "model", 100).read("3kTq9XwZ")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a gateway that does not run, with the texts of two keys."""
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    folder = tmp_path / "edgespec" / "gateway"
    ring = KeyRing(folder / "keys")
    disk = Disk(folder / "campus_store", "model", 100)
    for name in ("alice", "bob"):
        key, _ = ring.create(name)
        disk.append(StoredText(key.id, 5, backwards([9, 1])))
    return folder


def test_the_verb_shows_and_deletes_without_a_gateway(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "status"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["KEY", "NAME", "TEXTS", "MEMORY", "DISK", "OLDEST"] and len(rows) == 2
    assert main(["store", "forget", "alice"]) == 0
    assert "are deleted from the disk" in capsys.readouterr().out
    assert main(["store", "status", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["keys"]
    (bob,) = [key.id for key in KeyRing(state / "keys").all() if key.name == "bob"]
    assert row["key"] == bob and [path.stem for path in (state / "campus_store").iterdir()] == [bob]


@pytest.mark.usefixtures("state")
def test_forgetting_an_unknown_key_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "forget", "carol"]) == 73
    assert "there is no API key 'carol'; 'cloud-gateway store status' shows" in capsys.readouterr().err
