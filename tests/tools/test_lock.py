"""The lock files: whole, of one version, and obeyed by set-up."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from tools.check.dependencies import normalised
from tools.lock import FOLDER, ROOT, cpu_entry, entries

FILES = {file.stem: entries(file.read_text()) for file in FOLDER.glob("*.txt")}


@pytest.mark.claim("set-up-installs-what-is-locked")
def test_every_locked_package_has_a_version_and_a_hash() -> None:
    for name, found in FILES.items():
        for entry in found.values():
            assert re.match(r"[\w.-]+==\S+ ", entry) and "--hash=sha256:" in entry, f"{name}: {entry}"
        assert len(found) == sum("==" in line for line in (FOLDER / f"{name}.txt").read_text().splitlines())


def test_a_package_has_one_version_and_the_same_hashes_in_all_files() -> None:
    for name in ("worker", "gateway", "build", "lint"):
        assert {package: FILES["dev"].get(package, entry) for package, entry in FILES[name].items()} == FILES[name]


def test_a_version_is_locked_with_more_than_the_file_for_one_processor() -> None:
    """Else set-up on another processor or Python refuses a file that the index has."""
    single_files = {"argparse-manpage", "cuda-pathfinder", "cuda-toolkit", "llama-cpp-python"}
    of_one_file = {name for found in FILES.values() for name, entry in found.items() if entry.count("--hash=") == 1}
    assert of_one_file - {"torch"} == single_files, "these have one file in the index, for all processors"


def test_every_extra_is_locked_with_what_edgespec_itself_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name, wanted in (("worker", ["worker"]), ("gateway", ["gateway"]), ("dev", ["worker", "gateway", "dev"])):
        declared = [*project["dependencies"], *(one for extra in wanted for one in extras[extra])]
        packages = {normalised(re.split(r"[^\w.-]", one)[0]) for one in declared}
        assert packages <= {*FILES[name], *FILES["llama"], *FILES["cuda"]}


def test_cpu_wheels_of_another_version_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    (tmp_path / "torch-2.1+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"a")
    (tmp_path / "torch-2.0+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"b")
    digest = hashlib.sha256(b"a").hexdigest()
    before = "torch==2.1+cpu \\\n    --hash=sha256:00\n"
    assert cpu_entry("torch==2.1", before.replace("2.1", "2.0")).endswith(
        f"torch==2.1+cpu \\\n    --hash=sha256:{digest}"
    )
    assert set(re.findall(r"sha256:(\w+)", cpu_entry("torch==2.1", before))) >= {"00", digest}


def empty_wheel(folder: Path, name: str) -> str:
    """Makes a wheel of one empty module; returns its digest."""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(f"{name}.py", "")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.mark.live
@pytest.mark.claim("set-up-installs-what-is-locked")
def test_setup_installs_no_file_with_another_hash(tmp_path: Path) -> None:
    """The build tools have their hash, the packages of a worker another one."""
    links = tmp_path / "links"
    requirements = tmp_path / "requirements"
    links.mkdir()
    requirements.mkdir()
    for file, name, given in (("build", "edgespec_test_a", ""), ("worker", "edgespec_test_b", "0" * 64)):
        digest = empty_wheel(links, name)
        (requirements / f"{file}.txt").write_text(f"{name}==1.0 --hash=sha256:{given or digest}\n")
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "VENV": "venv"}
    done = subprocess.run(
        ["bash", str(ROOT / "tools/setup.sh"), "worker"],
        cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    installed = [path.name for path in tmp_path.glob("venv/lib/*/site-packages/edgespec_test_?.py")]
    assert done.returncode == 1 and installed == ["edgespec_test_a.py"]
    assert "DO NOT MATCH THE HASHES" in done.stderr
