"""Names, cores and models of the configuration on this machine, and the remembered digests of model files."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from edgespec.core.errors import ConfigError, ModelError
from edgespec.core.protocol.messages import Name
from edgespec.shared import models
from edgespec.shared.fields import AUTO_MODELS, machine_name, pin
from edgespec.shared.folders import cache_dir
from edgespec.shared.models import model_digest, resolve_model


def test_the_default_name_is_the_host_name_in_a_form_valid_on_the_wire() -> None:
    assert machine_name("lab 7") == "lab 7"
    assert msgspec.convert(machine_name(""), Name)


@pytest.mark.parametrize("host", ["b\u00fcro", "-x", "...", "", "lab 7", "a" * 80, "lab-7.example.edu"])
def test_any_host_name_gives_a_name_that_the_wire_allows(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert msgspec.convert(machine_name(""), Name)


def test_pinning_holds_the_process_and_names_the_cores_there_are() -> None:
    core = min(os.sched_getaffinity(0))
    script = f"import os; from edgespec.shared.fields import pin; pin([{core}]); print(os.sched_getaffinity(0))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str({core})
    pin([])
    with pytest.raises(ConfigError, match=r"`daemon.cpu` is \[4000\], but this process may use the cores"):
        pin([4000])
    before = os.sched_getaffinity(0)
    with pytest.raises(ConfigError, match="may use the cores"):
        pin([core, 4000])
    assert os.sched_getaffinity(0) == before


def test_the_automatic_models_are_those_that_the_models_module_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = models.QUANTISED.file
    names = [file, models.requantised_name(file, "q4_0"), models.dropped_name(file, (10,)), models.GEMMA.file]
    folder = models.model_dir()
    folder.mkdir(parents=True)
    commands = ["fetch auto:quantised", "make --format q4_0", "make --drop 10", "fetch auto:"]
    for reference, name, command in zip(AUTO_MODELS, names, commands, strict=True):
        with pytest.raises(ModelError, match=f"{name} is missing; run `edgespec models {command}"):
            resolve_model(reference)
        (folder / name).touch()
        if name not in (file, models.GEMMA.file):
            assert resolve_model(reference) == folder / name
    with pytest.raises(ModelError, match="run `edgespec models make --drop 8,16`"):
        models.dropped((16, 8))
    with pytest.raises(ModelError, match="damaged"):
        resolve_model("auto:quantised")
    assert models.dropped() == resolve_model("auto:dropped")
    assert models.requantised() == resolve_model("auto:requantised")


def test_any_other_model_is_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    assert resolve_model("~/m.gguf") == Path("/home/x/m.gguf")
    assert resolve_model("m.gguf") == Path("m.gguf")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "MIN_BYTES", 4)
    (tmp_path / "model.gguf").write_bytes(b"weights")
    return tmp_path / "model.gguf"


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the files that are read from now on."""
    count: list[int] = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: count.append(1) or real(*args))
    return count


def remembered() -> list[Path]:
    return list((cache_dir() / "digests").glob("*"))


def test_a_file_is_hashed_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hashlib.sha256(b"weights").digest()
    count = hashed(monkeypatch)
    assert model_digest(file) == model_digest(file) == expected
    assert len(count) == 1


def test_a_changed_file_is_hashed_again(file: Path) -> None:
    before = model_digest(file)
    state = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert model_digest(file) == hashlib.sha256(b"WEIGHTS").digest() != before
    other = file.with_name("other")
    other.write_bytes(b"another")
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    other.replace(file)  # the same size and time in another file
    assert model_digest(file) == hashlib.sha256(b"another").digest()


@pytest.mark.parametrize("content", ["", "{"])
def test_a_damaged_memory_is_made_again(content: str, file: Path) -> None:
    expected = model_digest(file)
    (memory,) = remembered()
    memory.write_text(content)
    assert model_digest(file) == expected == memory.read_bytes()


def test_a_cache_that_cannot_be_written_costs_time_only(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert model_digest(file) == hashlib.sha256(b"weights").digest()


def test_small_files_are_not_remembered(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MIN_BYTES", 8)
    model_digest(file)
    assert not remembered()


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere cannot be read \(No such file or directory\)"):
        model_digest(tmp_path / "nowhere")
