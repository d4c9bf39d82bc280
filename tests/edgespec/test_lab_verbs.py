"""Verbs of edgespec-lab, as the command line shows them with that distribution and without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgespec.core.errors import MissingPackageError

WITHOUT_LAB = (
    "from importlib import metadata\n"
    "installed = metadata.entry_points\n"
    "metadata.entry_points = lambda **wanted: [] if wanted.get('group') == 'edgespec.parts' else installed(**wanted)\n"
    "from edgespec.__main__ import main\n"
)


@pytest.mark.parametrize("verb", ["compare", "demo", "tune"])
def test_a_verb_of_the_lab_says_how_to_get_it_if_it_is_missing(verb: str) -> None:
    script = f"{WITHOUT_LAB}raise SystemExit(main(['{verb}', '--limit', '1']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == MissingPackageError.exit_code
    assert len(done.stderr.splitlines()) == 1
    assert f"`edgespec {verb}` is in the distribution edgespec-lab" in done.stderr
    assert "run `pip install ./lab`" in done.stderr
