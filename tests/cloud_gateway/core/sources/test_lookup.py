"""The source that looks for the text so far in itself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.core.sources.interface import ROOT
from cloud_gateway.core.sources.lookup import MAX_VISITS, MAX_WEIGHT, MIN_RATE, PRIORS, Lookup, Rates, Suffixes

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def suffixes(text: list[int], max_text: int = 1000) -> Suffixes:
    made = Suffixes(max_text)
    for token in text:
        made.append(token)
    return made


def slow(text: list[int]) -> tuple[int, list[int]]:
    """The longest end of the text that occurs earlier, by trying all; and the end of each occurrence."""
    for length in range(len(text) - 1, 0, -1):
        ends = [at for at in range(length - 1, len(text) - 1) if text[at - length + 1 : at + 1] == text[-length:]]
        if ends:
            return length, ends
    return 0, []


@given(TEXTS)
def test_the_longest_match_and_its_places_are_those_of_the_slow_twin(text: list[int]) -> None:
    found = suffixes(text)
    assert (found.match, sorted(found.earlier())) == slow(text)


@given(TEXTS, st.integers(4, 10))
def test_a_full_text_drops_its_earlier_half(text: list[int], most: int) -> None:
    kept: list[int] = []
    for token in text:
        kept = [*(kept[most // 2 :] if len(kept) >= most else kept), token]
    found = suffixes(text, most)
    assert found.text == kept and len(found.text) <= most
    assert (found.match, sorted(found.earlier())) == slow(kept)


@given(TEXTS, st.integers(1, 20))
def test_suggestions_are_the_continuations_by_their_frequency(text: list[int], room: int) -> None:
    source = Lookup(len(text))
    source.committed(text)
    match, ends = slow(text)
    found = source.propose(room)
    assert len(found) <= room
    if source.rate(match) < MIN_RATE:
        assert not found and source.why
        return
    assert bool(found) == (source.why is None)
    if not found:  # each of several continuations is unlikely
        return
    first = Counter(text[end + 1] for end in ends)
    for one in found:
        if one.parent == ROOT:
            assert one.chance == pytest.approx(source.rate(match) * first[one.token] / len(ends))
    assert found[0].parent == ROOT and first[found[0].token] == max(first.values())
    assert all(one.parent < number for number, one in enumerate(found))


def test_a_source_that_is_mostly_wrong_falls_silent_and_says_why() -> None:
    source = Lookup(0)
    assert source.propose(4) == () and source.why == Rates().refusal(0)
    number = 100
    for _ in range(30):  # each pair was followed by another token before
        source.committed([1, 2, number])
        number += 1
    source.committed([1, 2])
    assert source.propose(4) == () and source.why is not None and "2 tokens was right" in source.why


def test_it_learns_from_the_completion_and_not_from_the_prompt() -> None:
    text = [1, 2, 3, 4] * 20
    asked = Lookup(len(text))
    written = Lookup(0)
    asked.committed(text)
    written.committed(text)
    assert asked.rate(16) == PRIORS[5] and written.rate(16) > PRIORS[5]


def test_work_per_token_does_not_grow_with_the_text() -> None:
    """By counts: states are at most two a token, and a match is looked at in a bounded number of places."""
    for text in ([1] * 4000, [1, 2] * 2000, [number * number % 97 for number in range(4000)]):
        found = suffixes(text, 10_000)
        assert len(found._next) <= 2 * len(text) and len(list(found.earlier())) <= MAX_VISITS


def test_a_change_of_the_text_shows_within_one_memory_of_a_rate() -> None:
    rates = Rates()
    for right in [True] * 1000 + [False] * int(MAX_WEIGHT):
        rates.learn(3, right=right)
    assert rates(3) < 0.4
