"""The shipped units, as far as they can be held without a running systemd."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloud_gateway.parts.system_service import gateway_unit
from cloud_gateway.process.serve import EngineFailedError
from edgespec.core import errors
from edgespec.parts.system_service.unit import WORKER
from tests.support.programs import require
from tests.support.tiny_gguf import make_tiny_gguf

ROOT = Path(__file__).parents[3]
UNITS = {unit.name: unit.template for unit in (WORKER, gateway_unit())}
NAMES = tuple(UNITS)
EXPOSURE_LIMIT = 15  # tenths; systemd calls 2.0 to 4.9 OK
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1  # linux/prctl.h; what MemoryDenyWriteExecute= asks of the kernel


@pytest.fixture(params=NAMES)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit with a command that exists here in the place of the installed one."""
    path = tmp_path / str(request.param)
    text = UNITS[path.name].read_text()
    path.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = require("systemd-analyze")
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)


def settings(name: str) -> dict[str, list[str]]:
    """The unit's settings, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in UNITS[name].read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def test_systemd_understands_every_line(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_is_hardly_exposed(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_LIMIT}", str(unit))
    assert done.returncode == 0, done.stdout


@pytest.mark.claim("what-only-a-person-can-repair-is-not-tried-again")
@pytest.mark.parametrize("name", NAMES)
def test_what_only_a_person_can_repair_is_not_tried_again(name: str) -> None:
    never = {int(code) for code in settings(name)["RestartPreventExitStatus"][0].split()}
    hopeless = (
        errors.ConfigError,
        errors.ModelError,
        errors.LibraryError,
        errors.TokenizerMismatch,
        errors.PairingError,
        errors.KeyStoreError,
    )
    assert {error.exit_code for error in hopeless} <= never
    passing = (
        errors.AddressError,
        errors.NoGatewayError,
        errors.LocalProtocolError,
        errors.RemoteProtocolError,
        errors.EdgespecError,
        EngineFailedError,
    )
    assert never.isdisjoint({error.exit_code for error in passing})


@pytest.mark.parametrize("name", NAMES)
def test_a_busy_model_load_is_not_killed(name: str) -> None:
    assert settings(name)["Type"] == ["notify"]  # the watchdog starts when the service is ready
    assert int(settings(name)["TimeoutStartSec"][0]) >= 300
    assert int(settings(name)["WatchdogSec"][0]) >= 60  # the event loop may wait for seconds on a busy machine


@pytest.mark.parametrize("name", NAMES)
def test_a_service_that_fails_again_and_again_is_started_again(name: str) -> None:
    unit = settings(name)
    assert unit["StartLimitIntervalSec"] == ["0"] and "StartLimitBurst" not in unit
    assert unit["Restart"] == ["on-failure"] and int(unit["RestartSec"][0]) >= 10  # not in a tight loop


def test_the_worker_gives_way_to_everything_else() -> None:
    worker = settings("edgespec.service")
    expected = {"CPUWeight": "2", "IOSchedulingClass": "idle", "OOMScoreAdjust": "1000"}
    assert {key: worker[key] for key in expected} == {key: [value] for key, value in expected.items()}
    assert "MemoryMax" in worker and not {"CPUSchedulingPolicy", "Nice"} & set(worker)  # the event loop too


@pytest.mark.skipif(
    ctypes.CDLL(None).prctl(66, 0, 0, 0, 0) < 0, reason="this kernel has no PR_SET_MDWE (Linux 6.3), so it cannot tell"
)
def test_llama_cpp_runs_without_memory_that_is_writable_and_executable(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    script = f"""
import ctypes, mmap
assert ctypes.CDLL(None).prctl({PR_SET_MDWE}, {PR_MDWE_REFUSE_EXEC_GAIN}, 0, 0, 0) == 0
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    raise SystemExit("the kernel does not hold it")
except PermissionError:
    pass
import llama_cpp
model = llama_cpp.Llama({str(model)!r}, n_ctx=64, n_threads=1, verbose=False)
model.eval([1, 2, 3])
print(model.n_tokens == 3)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
    assert settings("edgespec.service")["MemoryDenyWriteExecute"] == ["yes"]


def test_the_example_of_a_drop_in_is_understood_and_the_same_in_the_manual(tmp_path: Path) -> None:
    lines = UNITS["cloud-gateway.service"].read_text().splitlines()
    start = lines.index("#   [Service]")
    example = [line.removeprefix("#   ") for line in lines[start : start + 4]]
    assert "\n".join(example) in (ROOT / "docs" / "service.md").read_text()
    unit = tmp_path / "example.service"
    unit.write_text("\n".join([*example, f"ExecStart={sys.executable}", ""]))
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stderr) == (0, "")
