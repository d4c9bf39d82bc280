from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tools.check import claims, sizes
from tools.check.commands import command_faults
from tools.check.dependencies import dependency_faults
from tools.check.docs import LEAK, link_faults, path_faults, prose_and_code


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    """`edgespec [--log L] run --config F | peers add --name N`."""
    parser = argparse.ArgumentParser(prog="edgespec")
    parser.add_argument("--log")
    verbs = parser.add_subparsers()
    verbs.add_parser("run").add_argument("--config")
    peers = verbs.add_parser("peers").add_subparsers()
    peers.add_parser("add").add_argument("--name")
    peers.add_parser("list")
    return parser


def command(line: str, parser: argparse.ArgumentParser, tmp_path: Path) -> list[str]:
    return list(command_faults(line, {"edgespec": parser}, {"demo", "test"}, tmp_path))


@pytest.mark.parametrize(
    "line",
    [
        "edgespec run --config configs/worker.toml",
        "$ sudo .venv/bin/edgespec --log debug run --config=x  # starts it",
        "edgespec peers add|list",
        "edgespec peers add [--name NAME]",
        "RUST_LOG=1 edgespec run | grep x",
        "edgespec",
        "make demo",
        "cat file",
        "`edgespec/1`",
    ],
)
def test_a_command_that_can_be_typed_has_no_fault(line: str, parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    assert command(line, parser, tmp_path) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("edgespec start", "`edgespec start` is no command"),
        ("edgespec run --confg x", "`edgespec run` has no option --confg"),
        ("edgespec run --log debug", "`edgespec run` has no option --log"),
        ("edgespec peers add|drop", "`edgespec peers drop` is no command"),
        ("cat x | edgespec start", "`edgespec start` is no command"),
        ("make demo everything", "`make everything` is no target"),
        ("python -m tools.nothing", "`python -m tools.nothing` does not exist"),
    ],
)
def test_a_command_that_cannot_be_typed_is_named(
    line: str, fault: str, parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    assert command(line, parser, tmp_path) == [fault]


def test_links_and_paths_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# The life of a request\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_real(): ...\n")
    text = (
        "[ok](docs/a.md#the-life-of-a-request) [no](docs/a.md#death) [gone](docs/b.md) [web](https://example.org)\n"
        "`docs/a.md` `docs/b.md` `tests/test_a.py::test_real` `tests/test_a.py::test_not` `edgespec/1` `docs/*.md`\n"
        "```\n[not a link](in/code)\n```\n"
    )
    document = tmp_path / "README.md"
    assert list(link_faults(tmp_path, document, text)) == [
        "the link to docs/a.md#death names no heading",
        "the link to docs/b.md leads nowhere",
    ]
    assert list(path_faults(tmp_path, text)) == [
        "`docs/b.md` does not exist",
        "`tests/test_a.py::test_not` does not exist in that file",
    ]


def test_continued_lines_of_a_command_are_one_line() -> None:
    assert prose_and_code("a\n```sh\nedgespec demo \\\n    --json OUT\n```\nb") == (
        "a\nb",
        ["edgespec demo  --json OUT"],
    )


def test_machine_paths_and_registry_hosts_are_leaks() -> None:
    leaks = [
        "see /wo" + "rk/main",
        "in /ro" + "ot/.cache",
        "https://py" + "pi.org/simple",
        "files.python" + "hosted.org",
    ]
    fine = ["the network/wo" + "rk/load", "https://example.org", "chroot/x", "/workers"]
    assert [bool(LEAK.search(line)) for line in leaks + fine] == [True] * 4 + [False] * 4


def function(name: str, lines: int, comment: str = "") -> str:
    return f"def {name}():{comment}\n" + "    pass\n" * (lines - 1)


def test_files_functions_and_main_loops_over_their_limit_are_named() -> None:
    assert list(sizes.faults("a.py", function("f", 60))) == []
    assert list(sizes.faults("a.py", function("f", 61))) == ["a.py:1: function f has 61 lines, over 60"]
    assert len(list(sizes.faults("a.py", "x = 1\n" * (sizes.FILE_LIMIT + 1)))) == 1
    assert list(sizes.faults("edgespec/worker/daemon.py", function("run", 39, "  # main loop"))) == []
    assert list(sizes.faults("edgespec/worker/daemon.py", "# main loop\n@decorated\n" + function("run", 39))) == []
    assert list(sizes.faults("edgespec/worker/daemon.py", function("run", 40, "  # main loop"))) == [
        "edgespec/worker/daemon.py:1: main loop run has 40 lines, over 39"
    ]
    assert list(sizes.faults("edgespec/worker/daemon.py", function("run", 9))) == [
        "edgespec/worker/daemon.py: no function is marked `# main loop`"
    ]


def test_a_dependency_needs_a_declaration_a_pin_and_a_reason(tmp_path: Path) -> None:
    for folder in ("docs", "edgespec", "requirements"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["numpy>=2", "PyNaCl"]\noptional-dependencies.dev = ["pytest"]\n'
    )
    (tmp_path / "docs" / "dependencies.md").write_text("| `numpy` | `pynacl` |\n")
    (tmp_path / "requirements" / "dev.txt").write_text("numpy==2.0\npytest==9.0\n")
    (tmp_path / "edgespec" / "a.py").write_text("import os, nacl.signing\nfrom rich import table\nfrom . import b\n")
    assert list(dependency_faults(tmp_path)) == [
        "requirements/ does not lock pynacl: run `python -m tools.lock`",
        "docs/dependencies.md gives no reason for pytest",
        "edgespec/a.py imports rich, which pyproject.toml does not declare",
    ]


def test_a_claim_without_a_test_and_a_marker_without_a_claim_are_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(
        '@pytest.mark.claim("held")\n@pytest.mark.claim("misspelt")\ndef test_a(): ...\n'
    )
    marked = claims.marks(tmp_path)
    known = {"Section": {"held": "It is held.", "alone": "It is alone."}}
    assert list(claims.faults(known, marked)) == [
        "no test upholds the claim alone of tests/claims.toml",
        "tests/test_one.py: tests/claims.toml has no claim misspelt",
    ]
    assert list(claims.unknown(known, "`held` and `a-name-of-no-claim`, not `sha-256`")) == [
        "docs/threats.md names a-name-of-no-claim, which is no claim of tests/claims.toml"
    ]
