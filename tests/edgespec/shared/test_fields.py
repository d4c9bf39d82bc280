"""Names, threads and cores: the meaning of configured values on this machine."""

from __future__ import annotations

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
from edgespec.shared.models import resolve_model


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
