"""The words of pairing codes, and how forgiving the code is to read and type."""

from __future__ import annotations

import itertools
import random

import pytest

from edgespec.core.errors import PairingError
from edgespec.core.pairing_messages import MAX_NAMEPLATE, Code
from edgespec.shared.words import CODE_WORDS, WORDS, new_code, parse_code


def edits(one: str, two: str) -> int:
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        former, row = row, [i]
        for j, b in enumerate(two, 1):
            row.append(min(former[j] + 1, row[-1] + 1, former[j - 1] + (a != b)))
    return row[-1]


def test_one_byte_picks_one_of_256_short_plain_words() -> None:
    assert len(WORDS) == len(set(WORDS)) == 256
    assert all(word.isascii() and word.isalpha() and word.islower() and 4 <= len(word) <= 9 for word in WORDS)


def test_no_two_words_are_one_typing_error_apart_or_begin_alike() -> None:
    for one, two in itertools.combinations(WORDS, 2):
        assert edits(one, two) >= 2, (one, two)
        assert one[:4] != two[:4], (one, two)


def test_a_code_read_back_is_the_code_shown() -> None:
    entropy = random.Random(1).randbytes
    for _ in range(200):
        code = new_code(entropy)
        assert 1 <= code.nameplate <= MAX_NAMEPLATE
        assert len(code.words) == CODE_WORDS
        assert parse_code(str(code)) == code


def test_every_nameplate_and_word_turns_up_and_the_avoided_nameplate_never() -> None:
    entropy = random.Random(2).randbytes
    codes = [new_code(entropy, avoid=42) for _ in range(4000)]
    assert {code.nameplate for code in codes} == set(range(1, MAX_NAMEPLATE + 1)) - {42}
    assert {word for code in codes for word in code.words} == set(WORDS)
    assert {new_code(entropy, avoid=MAX_NAMEPLATE).nameplate for _ in range(2000)} == set(range(1, MAX_NAMEPLATE))


@pytest.mark.parametrize(
    "typed", ["7-acorn-zebra-otter", " 7 Acorn  ZEBRA otter ", "7_acorn_zebra-otter.", "07-acorn-zebra-otter"]
)
def test_capitals_spaces_and_other_separators_are_forgiven(typed: str) -> None:
    assert parse_code(typed) == Code(7, ("acorn", "zebra", "otter"))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("", "must begin with the number"),
        ("acorn-zebra-otter", "must begin with the number"),
        ("0-acorn-zebra-otter", "must begin with the number"),
        ("100-acorn-zebra-otter", "must begin with the number"),
        ("99999999999999999999-acorn-zebra-otter", "must begin with the number"),
        ("7-acorn-zebra", "2 words after the number, not 3"),
        ("7-acorn-zebra-otter-apple", "4 words after the number, not 3"),
        ("7-acorn-zebar-otter", "did you mean `zebra`?"),
        ("7-acorn-qqqqq-otter", "check it against"),
    ],
)
def test_what_cannot_be_a_code_is_refused_before_anything_is_sent(typed: str, says: str) -> None:
    with pytest.raises(PairingError, match=says.replace("?", r"\?")):
        parse_code(typed)
