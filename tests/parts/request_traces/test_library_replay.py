"""The replay as a library: the program of docs/library.md runs."""

from __future__ import annotations

from tests.support.documents import MAX_LINES, programs, run


def test_the_program_of_the_page_plays_a_shipped_trace() -> None:
    program = programs("docs/library.md")["The replay"]
    assert sum(bool(line.strip()) for line in program.splitlines()) <= MAX_LINES
    lines = run(program).splitlines()
    assert lines[0] == "wanspec Check(decisions=49, differences=[])"
    assert lines[1] == "12 wait verify" and lines[-1].endswith("new candidates")
