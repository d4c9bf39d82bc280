"""The suffix array over stored texts finds what a search through every text finds."""

from __future__ import annotations

import random

import pytest

from cloud_gateway.parts.campus_store.index import MAX_ENDS, REACH, StoredText, Texts, backwards

Ahead = tuple[int | None, ...]


def slow_find(texts: list[list[int]], context: list[int]) -> tuple[int, list[Ahead]]:
    """The longest end of `context` that occurs, and the two tokens behind each of its places."""
    best = 0
    ahead: list[Ahead] = []
    for text in texts:
        for place in range(1, len(text) + 1):
            length = 0
            while length < min(len(context), REACH, place) and text[place - 1 - length] == context[-1 - length]:
                length += 1
            if length > best:
                best = length
                ahead = []
            if length and length == best:
                ahead.append(tuple([*text[place : place + 2], None, None][:2]))
    return best, ahead


def fast_find(texts: Texts, context: list[int]) -> tuple[int, list[Ahead]]:
    match = texts.find(backwards(context[-REACH:]))
    ahead: list[Ahead] = []
    for segment, place in match.ends:
        first = segment.following(place, 0)
        ahead.append((first, None if first is None else segment.following(place, 1)))
    return match.length, ahead


@pytest.mark.parametrize("tokens", [2, 6, 40])
def test_it_finds_what_a_search_through_all_texts_finds(tokens: int) -> None:
    draw = random.Random(tokens)
    listed: list[list[int]] = []
    texts = Texts(20_000)
    for number in range(120):
        listed.append([draw.randrange(tokens) for _ in range(draw.randrange(1, 60))])
        texts.add([StoredText("key", number, backwards(listed[-1]))])

    assert [record.data for record in texts.records()] == [backwards(text) for text in listed]
    assert 1 < len(texts.segments) < 12, "merged, up to a size"
    for _ in range(200):
        context = [draw.randrange(tokens + 1) for _ in range(draw.randrange(1, 24))]
        if draw.random() < 0.5:
            text = draw.choice(listed)
            context = text[: draw.randrange(1, len(text) + 1)]
        length, ahead = slow_find(listed, context)
        found, among = fast_find(texts, context)
        assert found == length
        if len(ahead) <= MAX_ENDS:
            assert sorted(among, key=str) == sorted(ahead, key=str)
        else:
            assert set(among) <= set(ahead) and MAX_ENDS / 2 <= len(among) <= MAX_ENDS


def test_only_a_text_as_a_whole_is_held() -> None:
    texts = Texts(10_000)
    texts.add([StoredText("key", 0, backwards([1, 2, 3, 4])), StoredText("key", 1, backwards([7, 8]))])
    held = [[1, 2, 3, 4], [7, 8]]
    others = [[2, 3, 4], [1, 2, 3], [4, 7], [3, 4, 7, 8], [0, 1, 2, 3, 4]]
    assert all(texts.holds(backwards(text)) for text in held)
    assert not any(texts.holds(backwards(text)) for text in others)


def test_dropped_texts_are_found_no_more() -> None:
    texts = Texts(10_000)
    for number in range(9):
        texts.add([StoredText("ab"[number % 2], number, backwards([10 * number, 10 * number + 1]))])
    texts.keep(lambda record: record.key == "b")
    assert [record.time for record in texts.records()] == [1, 3, 5, 7]
    assert fast_find(texts, [10]) == (1, [(11, None)]) and fast_find(texts, [20]) == (0, [])
    before = len(texts)
    texts.drop_oldest()
    assert len(texts) < before and fast_find(texts, [10]) == (0, [])
