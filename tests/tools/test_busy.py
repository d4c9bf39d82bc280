"""Runs beside busy loops: each is counted, what failed is named, and no loop outlives them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.check import busy

SCRIPT = """
import sys, pathlib
runs = pathlib.Path(sys.argv[1])
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
if len(runs.read_text()) == 2:
    sys.exit("noise\\nFAILED tests/test_a.py::test_b")
"""


def test_a_run_that_fails_fails_the_command_and_names_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "runs")]
    assert busy.main(["--runs", "3", "--loops", "0", "--", *command]) == 1
    printed = capsys.readouterr().out
    assert "FAILED tests/test_a.py::test_b" in printed and "noise" not in printed
    assert printed.endswith("1 of 3 runs failed beside 0 busy loops\n")
    assert busy.main(["--runs", "1", "--loops", "0", "--", *command]) == 0
