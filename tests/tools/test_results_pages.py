"""A page of results without its commit, machine or command is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check.results_pages import page_faults

ROOT = Path(__file__).parents[2]
PAGE = "Recorded at commit 62604706; two cores of an AMD EPYC.\n\n```\npython -m edgespec_lab.sim sweep --runs 5\n```\n"


def faults(text: str) -> list[str]:
    return list(page_faults(ROOT, text, lambda commit: commit in ("62604706", "da729093")))


def test_a_page_with_commit_machine_and_command_has_no_fault() -> None:
    assert faults(PAGE) == []
    assert faults(PAGE + "Policies are those of da729093.") == []


@pytest.mark.parametrize(
    ("replaced", "instead", "fault"),
    [
        ("62604706", "99710e7a", "names commit 99710e7a, which does not exist"),
        (" at commit 62604706", "", "names no commit at which it was measured"),
        ("two cores of an AMD EPYC", "a machine", "names no machine"),
        ("python -m edgespec_lab.sim sweep", "see the tool", "names no command that repeats it"),
        ("lab.sim sweep", "lab.sim field", "names `python -m edgespec_lab.sim field`, which does not exist"),
        ("edgespec_lab.sim", "tests.faults.soak", "names `python -m tests.faults.soak sweep`, which does not exist"),
    ],
)
def test_what_a_page_lacks_is_named(replaced: str, instead: str, fault: str) -> None:
    (found,) = faults(PAGE.replace(replaced, instead))
    assert found.startswith(fault)
