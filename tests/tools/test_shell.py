"""Completion in a real shell, manual pages, and the other program's verbs under `cloud-gateway`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cloud_gateway.__main__ as cloud_gateway
import edgespec.__main__ as edgespec
from tests.support.verbs import has_verb
from tools.check.commands import verbs_of
from tools.check.docs import load_parsers

PROGRAMS = {"edgespec": edgespec.main, "cloud-gateway": cloud_gateway.main}
Typed = Callable[..., str]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """The output of a command."""

    def run(program: str, *words: str) -> str:
        status: str | int
        try:
            status = PROGRAMS[program](words)
        except SystemExit as end:  # of --help
            status = end.code
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return printed.out

    return run


@pytest.mark.parametrize(
    ("program", "line", "offered"),
    [
        ("cloud-gateway", "keys cr", "create"),
        ("edgespec", "conf", "config"),
        ("cloud-gateway", "workers exp", "expire"),
    ],
)
def test_bash_completes_the_commands_of_both_programs(
    program: str, line: str, offered: str, typed: Typed, tmp_path: Path
) -> None:
    pytest.importorskip("shtab", reason="`make setup` installs the library")
    made = typed(program, "completion", "bash")
    *before, last = line.split()
    script = f"{made}\nCOMP_WORDS=({program} {line}); COMP_CWORD={len(before) + 1}\n"
    script += f"_shtab_{program.replace('-', '_')} {program} {last} x\n"
    script += 'echo "${COMPREPLY[@]}"\n'
    (tmp_path / "typed.sh").write_text(script)
    done = subprocess.run(["bash", str(tmp_path / "typed.sh")], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [offered], done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_manual_page_has_every_command_and_is_well_formed(program: str, typed: Typed, tmp_path: Path) -> None:
    pytest.importorskip("argparse_manpage", reason="pip install argparse-manpage")
    page = tmp_path / f"{program}.1"
    page.write_text(typed(program, "man"))
    plain = page.read_text().replace("\\", "")
    assert all(verb in plain for verb in verbs_of(load_parsers()[program]))
    if shutil.which("man"):
        read = ["man", "--warnings", "-l", str(page)]
        done = subprocess.run(read, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_operators_need_one_program_only(typed: Typed) -> None:
    shared = [["tune", "--help"]]
    if has_verb("models"):
        shared.append(["models", "list"])
    for words in shared:
        command = [sys.executable, "-m", "cloud_gateway", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, typed("edgespec", *words))
