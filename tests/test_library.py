"""docs/library.md: its programs run, its part works, and the pure modules import no torch and no aiohttp."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import aiohttp
import pytest

from cloud_gateway.part import Running
from tests.support.documents import MAX_LINES, ROOT, files, programs, run
from tests.support.echo import echo_gateway

PAGE = "docs/library.md"
PRINTED = {
    "The protocol": ["Linked(branching=4)", "Open(request=1, epoch=1, prompt_len=3"],
    "The policies": ["Wait(until=0.026", "[(7,), (7, 8)]"],
}
"""Lines that each program prints, besides others. The part that replays tests its own."""
MAX_PART_LINES = 60
"""Code lines of the part, in all its files."""
PART = "edgespec_notice"
HEAVY = ("aiohttp", "huggingface_hub", "llama_cpp", "torch", "transformers", "websockets")


@pytest.mark.parametrize("heading", PRINTED)
def test_a_program_of_the_page_runs_and_prints_what_it_says(heading: str) -> None:
    program = programs(PAGE)[heading]
    assert sum(bool(line.strip()) for line in program.splitlines()) <= MAX_LINES
    printed = run(program)
    for text in PRINTED[heading]:
        assert text in printed


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages with the part of the page in it."""
    shown = files(PAGE)
    assert sum(bool(line.strip()) for text in shown.values() for line in text.splitlines()) <= MAX_PART_LINES
    for name, text in shown.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    project = tomllib.loads(shown["pyproject.toml"])["project"]
    metadata = tmp_path / f"{PART}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {where}" for name, where in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))

    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(PART, None)


def gateway(installed: Path, *arguments: str) -> str:
    """The output of a command of the gateway."""
    done = subprocess.run(
        [sys.executable, "-m", "cloud_gateway", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_part_of_the_page_has_a_setting_a_verb_a_route_and_a_metric(installed: Path, tmp_path: Path) -> None:
    assert gateway(installed, "notice", "--set", "notice.text=hello") == "hello\n"
    assert '[notice]\n# What users of this gateway should read.\n#text = ""' in gateway(installed, "config")

    part = import_module(PART)
    running: Running = part.Notice("hello")
    async with echo_gateway(tmp_path / "state", more=lambda keys: running.routes()) as echo:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{echo.listener.url}/notice") as response:
                assert response.status == 401
            session.headers["Authorization"] = f"Bearer {echo.key}"
            async with session.get(f"{echo.listener.url}/notice") as response:
                assert await response.json() == {"notice": "hello"}
    assert [(figure.name, figure.value) for figure in running.figures()] == [("notice_reads", 1)]


@pytest.mark.parametrize("package", ["edgespec/core", "cloud_gateway/core"])
def test_the_pure_modules_import_no_large_library(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    modules = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in paths]
    names = [module.removesuffix(".__init__") for module in modules]
    script = f"import importlib, sys\n[importlib.import_module(name) for name in {names}]\n"
    script += f"print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(names) > 10 and done.stdout == "[]\n"
