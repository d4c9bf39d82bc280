"""Borders: text is cut into the same tokens in pieces and at once. `EDGESPEC_CASES=N` tries N texts of each kind."""

from __future__ import annotations

import os
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgespec.parts.text_translation.borders import Borders
from tests.parts.text_translation.text_tokenizers import KINDS, TextTokenizer, text_tokenizer

CASES = int(os.environ.get("EDGESPEC_CASES", "100"))
LIST = (
    "the tree of a draft isn't it's 3.14 12345 x[i] += f(y); \"quoted\" na\u00efve e\u0301 \u4e2d\u6587 \u3000 \n \n\n "
    "<end> <b>bold</b> http://a.b/c?d=e#f ... -- \U0001f600 \u00a0 \u2028 .\n )\n ;\r\n __init__ I'LL".split(" ")
)
WORDS = st.sampled_from(LIST)
TEXTS = st.lists(WORDS | st.text(max_size=4), max_size=12).flatmap(
    lambda words: st.sampled_from((" ", "", "\n", "  ")).map(lambda space: space.join(words))
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=CASES)
@given(text=TEXTS)
@example("a\n\nb  c")
@example("e\u0301 x")
def test_pieces_between_borders_are_cut_as_the_whole_text_is(kind: str, text: str) -> None:
    check(text_tokenizer(kind), borders_of(kind), text)


@cache
def borders_of(kind: str) -> Borders:
    return Borders(text_tokenizer(kind).pieces)


def check(tokenizer: TextTokenizer, borders: Borders, text: str) -> None:
    """With a Unigram model another cut of the same text and the same sum is as good."""
    whole = text.encode(errors="ignore")
    parts = [token for segment in borders.parted(whole) for token in tokenizer.encode(segment)]
    once = tokenizer.encode(whole)
    if parts != once:
        sums = [sum(tokenizer.scores[token] for token in one) for one in (parts, once)]
        texts = [b"".join(tokenizer.pieces[token] or b"" for token in one) for one in (parts, once)]
        assert any(tokenizer.scores) and texts[0] == texts[1] and sums[0] == pytest.approx(sums[1], rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "fault"), [("gpt2", "between"), ("gpt2", "table"), ("sentencepiece", "table"), ("unigram", "between")]
)
def test_planted_faults_are_found(kind: str, fault: str) -> None:
    """A border that is none: after every byte, or as if the vocabulary had no entry longer than a byte."""
    tokenizer = text_tokenizer(kind)
    wrong = Borders([])
    if fault == "between":
        wrong._joined = [bytes(256)] * 256
    else:
        wrong._joined = [bytes(byte not in b" \n" for byte in range(256))] * 256
    rng = random.Random(1)
    with pytest.raises(AssertionError):
        for _ in range(300):
            check(tokenizer, wrong, "  ".join(rng.choices(LIST, k=8)))


@pytest.mark.parametrize("kind", KINDS)
def test_nearly_every_word_ends_at_a_border(kind: str) -> None:
    text = b"Drafts come from a worker that is near, and the target decides every token itself"
    assert len(Borders(text_tokenizer(kind).pieces).parted(text)) > text.count(b" ")


def test_a_text_is_parted_at_its_borders() -> None:
    borders = Borders([b"ab", b"b c", None, b""])
    text = b"cab abb c a\nb"
    assert borders.parted(text) == [b"cab abb c", b" a", b"\nb"]
    assert borders.parted(text, 9) == [b"cab abb c", b" a", b"\nb"]
    assert borders.parted(text, 10) == [b"cab abb c a", b"\nb"]
    assert borders.between(ord("c"), ord(" "))
    assert not borders.between(ord("b"), ord(" "))


def test_only_spaces_and_ends_of_lines_behind_words_make_a_border() -> None:
    borders = Borders([])
    every = np.array([[borders.between(before, after) for after in range(256)] for before in range(256)])
    assert not every[list(b" \n\t\r")].any()
    assert every[ord("."), ord(" ")]
    assert not every[ord("."), ord("\n")]
    assert every[ord("a"), ord("\n")]
    assert not every[:, [number for number in range(256) if number not in b" \n"]].any()
