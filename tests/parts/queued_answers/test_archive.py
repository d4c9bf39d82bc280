"""Completions that are kept for later requests of their scope."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.parts.queued_answers.archive import MAX_FOUND, MAX_SHARE, Archive


def test_the_archive_gives_completions_of_the_conversation_and_scope_only() -> None:
    archive = Archive(400)
    archive.keep(b"a", [1, 2, 3, 4], [5])
    archive.keep(b"a", [1, 2, 9, 9], [6])
    archive.keep(b"a", [8, 8, 8, 8], [7])
    assert archive.find(b"a", [1, 2, 3, 4]) == [[6], [5]], "latest first"
    assert archive.find(b"a", [1, 2, 3, 4, 5, 6]) == [[5]]
    assert archive.find(b"b", [1, 2, 3, 4]) == []


def test_the_empty_scope_keeps_and_finds_nothing() -> None:
    archive = Archive(400)
    archive.keep(b"", [1], [2])
    assert len(archive) == 0 and archive.find(b"", [1]) == []


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), st.integers(1, 30)), max_size=60))
def test_the_archive_stays_within_its_room_and_each_scope_within_its_share(kept: list[tuple[bytes, int]]) -> None:
    archive = Archive(100)
    for scope, length in kept:
        archive.keep(scope, [1], [2] * length)
        held = [entry for entry in archive._entries if entry.scope == scope]
        assert sum(entry.size for entry in held) <= 100 // MAX_SHARE
        assert archive.tokens == sum(entry.size for entry in archive._entries) <= 100
        assert len(archive.find(scope, [1])) <= MAX_FOUND


@pytest.mark.claim("another-scope-learns-nothing-of-earlier-completions")
def test_a_busy_scope_drops_its_own_completions_first() -> None:
    archive = Archive(100)
    archive.keep(b"quiet", [1], [2] * 9)
    for number in range(50):
        archive.keep(b"busy", [1], [number] * 9)
    assert archive.find(b"quiet", [1]) == [[2] * 9]
    assert archive.find(b"busy", [1])[0] == [49] * 9
