"""Recorded tokens: what ships is small and useful, what is read back is what was recorded."""

from __future__ import annotations

from edgespec_lab.sim.tokens import SHIPPED, load

SHIPPED_DRAFTS = ["quantised", "without-10", "without-14", "without-8-16"]


def test_the_shipped_recording_is_small_and_has_a_draft_like_the_papers() -> None:
    assert SHIPPED.stat().st_size <= 5e6
    recording = load(SHIPPED)
    assert sorted(recording.drafts) == SHIPPED_DRAFTS
    assert len(recording.targets) > 5000 and len(recording.starts) == 48
    matches = {name: recording.match(name, 1) for name in recording.drafts}
    assert min(abs(match - 0.8) for match in matches.values()) < 0.03, matches
    assert all(recording.match(name, 2) > matches[name] for name in matches)
