"""The words of pairing codes, and the tolerance of typed codes."""

from __future__ import annotations

import hashlib
import itertools
import random

import pytest

from edgespec.core.errors import PairingError
from edgespec.core.pairing.messages import CODE_WORDS, MAX_NAMEPLATE, MIN_NAMEPLATE, WORDS, Code, new_code, parse_code

SPKI = hashlib.sha256(b"the gateway's TLS key").digest()
_random = random.Random(3)


def edits(one: str, two: str) -> int:
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        former = row
        row = [i]
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
        code = new_code(entropy, SPKI, 0)
        assert MIN_NAMEPLATE <= code.nameplate <= MAX_NAMEPLATE
        assert len(code.words) == CODE_WORDS
        assert parse_code(str(code)) == code


def test_every_nameplate_and_word_turns_up_and_the_avoided_nameplate_never() -> None:
    draws = iter(range(10**6))

    def entropy(wanted: int) -> bytes:
        return next(draws).to_bytes(wanted, "big") if wanted == 8 else _random.randbytes(wanted)

    codes = [new_code(entropy, SPKI, avoid=4200) for _ in range(9000)]
    assert {code.nameplate for code in codes} == set(range(MIN_NAMEPLATE, MAX_NAMEPLATE + 1)) - {4200}
    assert {word for code in codes for word in code.words} == set(WORDS)
    last = {new_code(entropy, SPKI, avoid=MAX_NAMEPLATE).nameplate for _ in range(9000)}
    assert last == set(range(MIN_NAMEPLATE, MAX_NAMEPLATE))


def test_a_code_fits_its_gateway_and_one_other_in_ten_thousand() -> None:
    code = new_code(_random.randbytes, SPKI, 0)
    assert code.fits(SPKI)
    others = sum(code.fits(_random.randbytes(32)) for _ in range(100_000))
    assert others < 40  # 10 on average


@pytest.mark.claim("a-key-that-fits-one-code-fits-no-other")
def test_a_key_that_fits_one_code_fits_no_other() -> None:
    """So a key that fits the codes of a gateway cannot be searched for beforehand."""
    codes = [new_code(_random.randbytes, SPKI, 0) for _ in range(10)]
    found = next(key for key in map(_random.randbytes, [32] * 300_000) if codes[0].fits(key))
    assert not any(code.fits(found) for code in codes[1:])


def test_a_word_mistyped_as_another_does_not_go_with_the_digits() -> None:
    code = new_code(random.Random(4).randbytes, SPKI, 0)
    wrong = 0
    for word in WORDS:
        wrong += Code(code.nameplate, (word, *code.words[1:]), code.check).fits(SPKI)
    assert wrong == 1  # itself


@pytest.mark.parametrize(
    "typed", ["4821-acorn-zebra-otter-0305", " 4821 Acorn  ZEBRA otter 0305 ", "4821_acorn_zebra-otter-0305."]
)
def test_capitals_spaces_and_other_separators_are_forgiven(typed: str) -> None:
    assert parse_code(typed) == Code(4821, ("acorn", "zebra", "otter"), 305)
    assert str(parse_code(typed)) == "4821-acorn-zebra-otter-0305"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("", "must begin with the four digits"),
        ("0821-acorn-zebra-otter-0305", "must begin with the four digits"),
        ("99999999999999999999-acorn-zebra-otter", "must begin with the four digits"),
        ("4821-acorn-zebra-0305", "2 words after the first number, not 3"),
        ("4821-acorn-zebra-otter", "must end with the four digits"),
        ("4821-acorn-zebra-otter-305", "must end with the four digits"),
        ("4821-acorn-zebar-otter-0305", "did you mean `zebra`?"),
        ("4821-acorn-qqqqq-otter-0305", "check it against"),
    ],
)
def test_what_cannot_be_a_code_is_refused_before_anything_is_sent(typed: str, says: str) -> None:
    with pytest.raises(PairingError, match=says.replace("?", r"\?")):
        parse_code(typed)
