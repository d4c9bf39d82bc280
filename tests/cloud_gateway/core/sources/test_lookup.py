"""Sources without a draft model that look for the text so far: in itself, and in queued and earlier answers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.core.sources.answers import MAX_FOUND, MAX_SHARE, MAX_TOKENS, NONE, REACH, Answers, Archive
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


TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=24)
PROMPT = [*range(100, 120)]
"""A text as long as the longest match that is distinguished."""


def source(*answers: list[int], prompt: list[int] = PROMPT) -> Answers:
    made = Answers(prompt)
    assert all(made.add(answer) for answer in answers)
    made.committed(prompt)
    return made


def slowly(texts: list[list[int]], text: list[int]) -> set[int]:
    """The tokens after the longest end of the text that occurs in any of the texts, by trying all."""
    for length in range(len(text), 0, -1):
        ends = [
            (one, at + length)
            for one in texts
            for at in range(len(one) - length + 1)
            if one[at : at + length] == text[-length:]
        ]
        if ends:
            return {one[at] for one, at in ends if at < len(one)}
    return set()


@given(st.lists(TEXT, min_size=1, max_size=3), TEXT)
def test_candidates_follow_the_longest_match_of_the_slow_twin(answers: list[list[int]], text: list[int]) -> None:
    made = source(*answers)
    made.rate.learn(1, right=True)
    made.committed(text)
    firsts = {one.token for one in made.propose(8) if one.parent == -1}
    wanted = slowly([[*PROMPT, *answer] for answer in answers], [*PROMPT, *text])
    assert firsts <= wanted and (bool(firsts) == (made.why is None))


def test_an_answer_that_comes_later_continues_where_the_text_is() -> None:
    made = source()
    made.committed([1, 2])
    assert made.propose(4) == () and made.why == NONE
    assert made.add([1, 2, 3, 4])
    assert [one.token for one in made.propose(4)] == [3, 4]


def test_no_candidate_runs_from_one_answer_into_the_next() -> None:
    made = source([1, 2], [3, 4])
    assert {one.token for one in made.propose(8)} == {1, 2, 3, 4}
    made.committed([1, 2])
    assert not made.propose(8) and made.why is not None


def test_an_answer_that_goes_another_way_is_found_again_further_on() -> None:
    made = source([1, 2, 3, 4, 5, 6])
    made.committed([9, 3, 4, 5])
    assert [one.token for one in made.propose(2)] == [6]


def test_a_source_whose_answers_mislead_falls_silent_and_says_why() -> None:
    made = source([1, 5, 1, 6, 1, 7], prompt=[0])
    for number in range(100, 140):
        made.committed([1, number])
    made.committed([1])
    assert made.propose(4) == () and made.why is not None and "right" in made.why


def test_there_is_room_for_so_many_tokens_and_no_more() -> None:
    made = Answers(PROMPT)
    assert made.add([1] * (MAX_TOKENS // 2)) and not made.add([1] * (MAX_TOKENS // 2)) and not made.add([])
    assert made.count == 1 and REACH <= MAX_TOKENS


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
