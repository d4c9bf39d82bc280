"""The lines of `edgespec status` about the owner."""

from __future__ import annotations

from typing import Any

from edgespec.parts.owner_signs.report import lines

OWNER: dict[str, Any] = {
    "mode": "always",
    "state": "drafting",
    "because": None,
    "sources": {"input": "off: none"},
    "stepped_aside": [
        {"at": "2026-11-21T22:00:00+0000", "because": "it is busy", "for_s": 61.0},
        {"at": "2026-11-21T23:00:00+0000", "because": "it is late", "for_s": 2.0},
    ],
}


def test_sources_and_times_aside_are_lines_with_the_latest_first() -> None:
    assert list(lines({"owner": OWNER})) == [
        ("owner", "drafting (`owner.mode` is always)"),
        ("  input", "off: none"),
        ("  aside", "2026-11-21T23:00:00+0000 for 0:00:02: it is late"),
        ("", "2026-11-21T22:00:00+0000 for 0:01:01: it is busy"),
    ]


def test_a_worker_that_runs_without_the_part_has_a_line_too() -> None:
    assert list(lines({"state": "ready"})) == [("owner", "not watched: this worker was started to draft at any time")]
