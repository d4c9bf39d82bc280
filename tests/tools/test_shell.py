"""Completion in a real shell, manual pages, and the other program's verbs under `cloud-gateway`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.check.commands import verbs_of
from tools.check.docs import load_parsers

MODULES = {"edgespec": "edgespec", "cloud-gateway": "cloud_gateway"}


def typed(*words: str) -> str:
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("program", "line", "offered"),
    [("edgespec", "peers in", "invite"), ("edgespec", "conf", "config"), ("cloud-gateway", "workers exp", "expire")],
)
def test_bash_completes_the_commands_of_both_programs(program: str, line: str, offered: str, tmp_path: Path) -> None:
    pytest.importorskip("shtab", reason="`make setup` installs the library")
    made = typed(MODULES[program], "completion", "bash")
    *before, last = line.split()
    script = f"{made}\nCOMP_WORDS=({program} {line}); COMP_CWORD={len(before) + 1}\n"
    script += f"_shtab_{MODULES[program]} {program} {last} x\n"
    script += 'echo "${COMPREPLY[@]}"\n'
    (tmp_path / "typed.sh").write_text(script)
    done = subprocess.run(["bash", str(tmp_path / "typed.sh")], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [offered], done.stderr


@pytest.mark.parametrize("program", MODULES)
def test_a_manual_page_has_every_command_and_is_well_formed(program: str, tmp_path: Path) -> None:
    pytest.importorskip("argparse_manpage", reason="pip install argparse-manpage")
    page = tmp_path / f"{program}.1"
    page.write_text(typed(MODULES[program], "man"))
    plain = page.read_text().replace("\\", "")
    assert all(verb in plain for verb in verbs_of(load_parsers()[0][program]))
    if shutil.which("man"):
        read = ["man", "--warnings", "-l", str(page)]
        done = subprocess.run(read, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_operators_need_one_program_only() -> None:
    assert typed("cloud_gateway", "models", "list") == typed("edgespec", "models", "list")
    assert typed("cloud_gateway", "tune", "--help") == typed("edgespec", "tune", "--help")
