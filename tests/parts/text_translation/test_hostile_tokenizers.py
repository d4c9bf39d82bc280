"""The tokenizer that a gateway sends ends no worker, whatever it is and whatever text is cut with it."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from edgespec.core.errors import ModelError
from edgespec.parts.text_translation import trial
from edgespec.parts.text_translation.fetching import _gguf, translation_by
from edgespec.parts.text_translation.gguf import MAX_TEXT, GgufTokenizer
from edgespec.parts.text_translation.tokenizer_file import unpacked
from tests.parts.text_translation.hostile_vocabularies import (
    BYTE,
    USER_DEFINED,
    byte_level,
    encoded,
    sentencepiece,
    unigram,
    without,
)
from tests.support.tiny_gguf import make_tiny_gguf

TRIAL_TEXT = "A trial: 1 \u00e9\U0001f600\n\n  \t<b>\u2581".encode()
"""A vocabulary with no other bytes than these passed a trial of this one text."""
BEYOND_UNICODE = [b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf7\xbf\xbf\xbf", b"a\xf6\x8f\xbf\xbfb"]
PATTERNS = ["gpt-2", "tekken", "superbpe"]
"""`tokenizer.ggml.pre` with code of its own in llama.cpp, and with `std::regex`."""
ENTRIES = 1000
"""Entries of 1,000 random bytes, for each of which llama.cpp's tree of a Unigram model takes 0.1 kB."""

FUZZ = r"""
import pathlib, random, sys
from edgespec.parts.text_translation.gguf import GgufTokenizer
tokenizer = GgufTokenizer(pathlib.Path(sys.argv[1]))
chosen = random.Random(2)
units = [b"a", b"aB", b" ", b"7", b"\n", "\u6c49".encode(), "\U0001f600".encode(), b"\xff"]
units += [b"\xf7\xbf\xbf\xbf", b"\xe2\x96"]
texts = [unit * (40_000 // len(unit)) for unit in units]
texts += [chosen.randbytes(chosen.randrange(1, 40)) for _ in range(200)]
texts += [b"".join(chosen.choices(units, k=chosen.randrange(1, 20))) for _ in range(200)]
for text in texts:
    tokens = tokenizer.encode(text)
    assert all(0 <= token < tokenizer.vocab_size for token in tokens), (text[:40], tokens[:9])
"""
"""Cuts texts that the trial does not have, and ones that are twenty times as long."""


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("draft") / "tiny.gguf")


def file_of(data: bytes, folder: Path) -> Path:
    """The GGUF file that a worker makes of it, without the checks of `unpacked`."""
    path = folder / "target.gguf"
    path.write_bytes(b"".join(_gguf(unpacked(data))))
    return path


def ends_with(code: str, *arguments: object) -> int:
    """The exit status of a child process."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, timeout=300).returncode


@pytest.mark.claim("a-gateways-tokenizer-ends-no-worker")
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (sentencepiece(sorted({*TRIAL_TEXT})), "no token for the byte 0x00"),
        (without(sentencepiece(), b"<0xE2>"), "no token for the byte 0xe2"),
        (without(sentencepiece(extra=[b"\x00"]), b"<0x00>"), "no token for the byte 0x00"),
        (encoded(model="t5", tokens=[b"a", b"b"], token_type=[1, 1], scores=[0.0, -1.0]), "for what it cannot write"),
        (sentencepiece(extra=[b"zz"], kind=BYTE), r"ends llama.cpp in a trial|cannot read"),
        (sentencepiece(extra=[b"twice", b"twice"], kind=USER_DEFINED), "SIGABRT"),
        (byte_level("whitespace"), "SIGABRT"),
        (byte_level("no-such-pattern"), "cannot read"),
    ],
    ids=[
        "bytes of one text", "a byte is missing", "a zero byte ends an entry", "no unknown token",
        "a short byte token", "an entry twice", "spaces that llama.cpp asserts to be away",
        "an unknown pattern",
    ],
)  # fmt: skip
async def test_a_vocabulary_that_ends_llama_cpp_is_refused(data: bytes, says: str, draft: Path) -> None:
    with pytest.raises(ModelError, match=says):
        await translation_by(data, draft, b"d" * 32)


@pytest.mark.claim("a-gateways-tokenizer-ends-no-worker")
async def test_a_trial_has_limits_of_time_and_memory(draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp looks for each token that a model's maker defined in each text, and a Unigram model becomes a tree."""
    monkeypatch.setattr(trial, "CPU_S", 2)
    slow = byte_level(extra=[f"<{number}>".encode() for number in range(100_000)], kind=USER_DEFINED)
    with pytest.raises(ModelError, match="takes more than 2 s to try"):
        await translation_by(slow, draft, b"d" * 32)

    monkeypatch.undo()
    monkeypatch.setattr(trial, "MEMORY_BYTES", 64 << 20)
    random_bytes = random.Random(1)
    entries = [random_bytes.randbytes(1000).replace(b"\0", b"x") for _ in range(ENTRIES)]
    large = unigram(extra=entries)
    with pytest.raises(ModelError, match="with 64 MB of memory|cannot read its tokenizer"):
        await translation_by(large, draft, b"d" * 32)

    monkeypatch.undo()
    assert await translation_by(large, draft, b"d" * 32) is not None, "the memory ended it, and nothing else of it"


@pytest.mark.claim("a-gateways-tokenizer-ends-no-worker")
@pytest.mark.parametrize(
    "data",
    [sentencepiece(), unigram(), byte_level(bytes_=40), *(byte_level(pre) for pre in PATTERNS)],
    ids=["sentencepiece", "unigram", "few bytes", *PATTERNS],
)
async def test_no_text_ends_a_tokenizer_that_passed(data: bytes, draft: Path, tmp_path: Path) -> None:
    assert await translation_by(data, draft, b"d" * 32) is not None
    assert ends_with(FUZZ, file_of(data, tmp_path)) == 0


@pytest.mark.claim("a-gateways-tokenizer-ends-no-worker")
def test_bytes_beyond_unicode_are_cut_as_invalid_ones(tmp_path: Path) -> None:
    tokenizer = GgufTokenizer(file_of(byte_level(), tmp_path))
    invalid = tokenizer.encode(b"\xff")
    for text in BEYOND_UNICODE:
        tokens = tokenizer.encode(text)
        assert b"".join(tokenizer.pieces[token] or b"" for token in tokens).strip(b"ab") == "\ufffd".encode()
        assert len(tokens) == len(invalid) + text.count(b"a") + text.count(b"b")

    last = "\U0010ffff".encode()
    assert b"".join(tokenizer.pieces[token] or b"" for token in tokenizer.encode(last)) == last


@pytest.mark.parametrize("data", [sentencepiece(), unigram(), byte_level()], ids=["sentencepiece", "unigram", "bytes"])
def test_a_long_text_is_cut_as_its_parts_are(data: bytes, tmp_path: Path) -> None:
    tokenizer = GgufTokenizer(file_of(data, tmp_path))
    words = [b"the", b"th\xc3\xa9", b"e" * 700, b"a"]
    text = b"the" + b"".join(b" " + words[number % 4] for number in range(60))
    assert len(text) > 4 * MAX_TEXT

    cut = list(range(0, len(text), 1500))
    spaces = [0, *(text.index(b" ", at) for at in cut[1:] if b" " in text[at:]), len(text)]
    parts = [text[begin:end] for begin, end in pairwise(spaces)]
    assert tokenizer.encode(text) == [token for part in parts for token in tokenizer.encode(part)]


FREED = r"""
import gc, pathlib, sys
from edgespec.parts.text_translation.gguf import translation
def resident():
    return [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")][0]
target, draft = map(pathlib.Path, sys.argv[1:])
translation(target, draft, b"")
once = resident()
for _ in range(5):
    pair = translation(target, draft, b"")
    pair.cut(b"the"), pair.read(b"the")
    del pair
print(once, resident())
"""


@pytest.mark.claim("a-gateways-tokenizer-ends-no-worker")
def test_a_translation_that_is_replaced_frees_its_vocabularies(draft: Path, tmp_path: Path) -> None:
    large = file_of(sentencepiece(extra=[f"entry{number}".encode() for number in range(40_000)], kind=1), tmp_path)
    command = [sys.executable, "-c", FREED, str(large), str(draft)]
    shown = subprocess.run(command, capture_output=True, check=True, timeout=300, text=True).stdout
    once_kb, later_kb = map(int, shown.split())
    assert later_kb < once_kb + 20_000, "each one takes 15 MB and more"
