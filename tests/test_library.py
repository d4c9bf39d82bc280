"""docs/library.md: its programs run, and the pure modules import no torch and no aiohttp."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.documents import MAX_LINES, ROOT, programs, run

PAGE = "docs/library.md"
PRINTED = {
    "The protocol": ["Linked(branching=4)", "Open(request=1, epoch=1, prompt_len=3"],
    "The policies": ["Wait(until=0.026", "[(7,), (7, 8)]"],
}
"""Lines that each program prints, besides others. The part that replays tests its own."""
HEAVY = ("aiohttp", "huggingface_hub", "llama_cpp", "torch", "transformers", "websockets")


@pytest.mark.parametrize("heading", PRINTED)
def test_a_program_of_the_page_runs_and_prints_what_it_says(heading: str) -> None:
    program = programs(PAGE)[heading]
    assert sum(bool(line.strip()) for line in program.splitlines()) <= MAX_LINES
    printed = run(program)
    for text in PRINTED[heading]:
        assert text in printed


@pytest.mark.parametrize("package", ["edgespec/core", "cloud_gateway/core"])
def test_the_pure_modules_import_no_large_library(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    modules = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in paths]
    names = [module.removesuffix(".__init__") for module in modules]
    script = f"import importlib, sys\n[importlib.import_module(name) for name in {names}]\n"
    script += f"print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(names) > 10 and done.stdout == "[]\n"
