"""Small tokenizers of the kinds in use, trained on the project's own text, as translation sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = Path(__file__).parents[3]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KINDS = ("gpt2", "qwen", "sentencepiece", "unigram", "wordpiece")
"""The last one keeps no spaces: its tokens do not give the text back, so that nothing of it is sent."""


class TextTokenizer:
    """`Tokenizer` of drafting/translation.py, over Hugging Face's."""

    begin: Sequence[int] = ()

    def __init__(self, tokenizer: Tokenizer, byte_level: bool) -> None:
        self.tokenizer = tokenizer
        tokenizer.encode_special_tokens = True
        vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        special = {number for text, number in vocabulary if text in ("<end>",)}
        read = _byte_level if byte_level else _metaspace
        self.scores = [0.0] * len(vocabulary)
        """Of a Unigram model: cuts of equal sums are equally good, and rounding chooses."""
        self.pieces: Sequence[bytes | None] = [None if n in special else read(text) for text, n in vocabulary]
        self.controls: Mapping[int, bytes] = {n: text.encode() for text, n in vocabulary if n in special}

    def encode(self, text: bytes) -> list[int]:
        return list(self.tokenizer.encode(text.decode(errors="replace"), add_special_tokens=False).ids)


@cache
def text_tokenizer(kind: str, size: int = 600) -> TextTokenizer:
    """One of KINDS, with about `size` entries and the control token `<end>`."""
    if kind in ("unigram", "wordpiece"):
        return _unigram(size) if kind == "unigram" else _wordpiece(size)
    byte_level = kind in ("gpt2", "qwen")
    tokenizer = Tokenizer(models.BPE(byte_fallback=not byte_level))
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    if kind == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "qwen":
        split = pre_tokenizers.Split(Regex(QWEN), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    fallback = [] if byte_level else _FALLBACK
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=fallback)
    tokenizer.train_from_iterator([_corpus()], trainer)
    tokenizer.decoder = decoders.ByteLevel() if byte_level else decoders.Metaspace()
    return _finished(tokenizer, byte_level)


def _unigram(size: int) -> TextTokenizer:
    """With byte fallback, which its trainer does not set."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.UnigramTrainer(vocab_size=size - 256, special_tokens=["<unk>"], unk_token="<unk>")
    tokenizer.train_from_iterator(_corpus().split("\n"), trainer)
    entries = [(text, score) for text, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    entries += [(text, -20.0) for text in _FALLBACK]
    tokenizer.model = models.Unigram(entries, 0, True)
    found = _finished(tokenizer, byte_level=False)
    found.scores[: len(entries)] = [score for _, score in entries]
    return found


def _wordpiece(size: int) -> TextTokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator([_corpus()], trainers.WordPieceTrainer(vocab_size=size, special_tokens=["[UNK]"]))
    return _finished(tokenizer, byte_level=False)


def _finished(tokenizer: Tokenizer, byte_level: bool) -> TextTokenizer:
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return TextTokenizer(tokenizer, byte_level)


def _corpus() -> str:
    return "\n\n".join(path.read_text() for path in (ROOT / "README.md", ROOT / "edgespec/core/drafting/tree.py"))


def _byte_level(text: str) -> bytes:
    return bytes(_BYTES[letter] for letter in text)


def _metaspace(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x"):
        return bytes([int(text[3:5], 16)])
    return text.removeprefix("##").replace("\u2581", " ").encode()


_FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for the bytes: printable ones stand for themselves, others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_letters()
