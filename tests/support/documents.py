"""Programs in the documents, run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 25
"""Code lines of a program in a document."""


def programs(page: str) -> dict[str, str]:
    """The Python programs of a page, each by the heading above it."""
    sections = re.split(r"^## (.+)\n", (ROOT / page).read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for heading, text in zip(sections[::2], sections[1::2], strict=True):
        for program in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            found[heading] = program

    return found


def files(page: str) -> dict[str, str]:
    """The files of a page, by their names: programs and tables whose first line is a comment with the name."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```\w+\n# ([\w/.]+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return dict(blocks)


def run(program: str) -> str:
    """The output of a program in a process of its own in the checkout. It may import neither torch nor aiohttp."""
    without = "import sys\nsys.modules['torch'] = sys.modules['aiohttp'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", without + program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
