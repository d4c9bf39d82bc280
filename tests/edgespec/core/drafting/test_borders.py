"""Borders: text is cut into the same tokens in pieces and at once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgespec.core.drafting.borders import Borders
from tests.support.text_tokenizers import KINDS, text_tokenizer

WORDS = st.sampled_from(
    "the tree of a draft isn't it's 3.14 12345 x[i] += f(y); \"quoted\" na\u00efve e\u0301 \u4e2d\u6587 \u3000 \n \n\n "
    "<end> <b>bold</b> http://a.b/c?d=e#f ... -- \U0001f600 \u00a0 \u2028 .\n )\n ;\r\n __init__ I'LL".split(" ")
)
TEXTS = st.lists(WORDS | st.text(max_size=4), max_size=12).flatmap(
    lambda words: st.sampled_from((" ", "", "\n", "  ")).map(lambda space: space.join(words))
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300)
@given(text=TEXTS)
@example("a\n\nb  c")
@example("e\u0301 x")
def test_pieces_between_borders_are_cut_as_the_whole_text_is(kind: str, text: str) -> None:
    tokenizer = text_tokenizer(kind)
    whole = text.encode(errors="ignore")
    cuts = [0, *Borders(tokenizer.pieces).find(whole), len(whole)]
    parts = [token for begin, end in pairwise(cuts) for token in tokenizer.encode(whole[begin:end])]
    assert parts == tokenizer.encode(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_nearly_every_word_ends_at_a_border(kind: str) -> None:
    text = b"Drafts come from a worker that is near, and the target decides every token itself"
    assert len(list(Borders(text_tokenizer(kind).pieces).find(text))) >= text.count(b" ")


def test_the_last_border_is_the_last_one_that_is_found() -> None:
    borders = Borders([b"ab", b"b c", None, b""])
    assert list(borders.find(b"cab abb c a\nb")) == [9, 11]
    assert (borders.last(b"cab abb c a\nb"), borders.last(b"cab abb c a\nb", 11)) == (11, 11)
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
