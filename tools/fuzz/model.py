"""A model whose logits are looked up by the last tokens: ordinary rows and extreme ones, many in a ms; grammars of a
few JSON schemas over a small tokenizer whose tokens are characters.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import numpy as np

from cloud_gateway.api.grammars import Constraints, Grammar, Grammars
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.part import choices_of
from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import schema
from cloud_gateway.process.loading import make_grammars, parameters_of
from tools.doubles.model import Logits

CHOICES = choices_of(all_parts())
METHODS = CHOICES.methods
"""Methods of verification, by name."""
PARAMETERS = tuple(parameters_of(all_parts()))
"""Parameters of requests that parts serve."""
ROWS = 256
LARGEST = float(np.finfo(np.float32).max)


class TableModel:
    """Logits after a path: one of `ROWS` rows, chosen by its length and its last two tokens."""

    def __init__(self, vocab_size: int, seed: int, extreme: bool) -> None:
        """`extreme`: every second row has equal, huge or infinite logits."""
        rng = np.random.default_rng([vocab_size, seed])
        self.vocab_size = vocab_size
        self._rows = rng.normal(0, 2.5, (ROWS, vocab_size)).astype(np.float32)
        if extreme:
            for row in self._rows[::2]:
                _spoil(row, rng)
        self._rows.flags.writeable = False  # readers must not change a row
        self._argmax = [int(row.argmax()) for row in self._rows]

    def index(self, tokens: Sequence[int]) -> int:
        """Of the row after these tokens, at least one."""
        return (tokens[-1] * 31 + (tokens[-2] * 17 if len(tokens) > 1 else 0) + len(tokens) * 7) % ROWS

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Raw logits after these tokens, shape [vocab_size]."""
        row: Logits = self._rows[self.index(tokens)]
        return row

    def argmax(self, tokens: Sequence[int]) -> int:
        """The largest of them; of equals the lowest."""
        return self._argmax[self.index(tokens)]

    def entropy(self, tokens: Sequence[int]) -> float:
        """Made up, between 0 and 5 nats: that of extreme logits may be no number."""
        return self.index(tokens) % 50 / 10


def _spoil(row: Logits, rng: np.random.Generator) -> None:
    """Makes a row extreme, in place. None has what is not a number, which only a broken model gives."""
    some = rng.random(len(row)) < 0.3
    match int(rng.integers(7)):
        case 0:
            row[:] = rng.choice([0.0, 5.0, -LARGEST, LARGEST, -np.inf])
        case 1:
            row[some] = -np.inf
        case 2:
            row[some] = np.inf
        case 3:
            row *= np.float32(1e37)
        case 4:
            row[some] = LARGEST
        case 5:
            row[:] = np.round(row)  # many equals
        case 6:
            row *= np.float32(1e-40)  # subnormal


@functools.cache
def table(vocab_size: int, seed: int, extreme: bool) -> TableModel:
    """The same model each time, made once in a process."""
    return TableModel(vocab_size, seed, extreme)


ALONE = FlatTree([-1], [-1], [0])
"""A tree without candidates."""


CHARACTERS = '\x00 {}[]":,-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ'
"""Id 0 ends the answer."""


def constraint_of(grammar: Grammar) -> Constraints:
    """Makes a fresh constraint for each answer; raises ClientError 400 as the gateway does."""
    compiler = grammars()
    assert compiler is not None, "a part that asks for grammars needs one that compiles them"
    return compiler.compile(grammar, b"")


@functools.cache
def grammars() -> Grammars | None:
    """The gateway's compiler over this tokenizer, if a part brings one."""
    settings = schema(all_parts())()
    return make_grammars(settings, _Tokenizer(), len(CHARACTERS), frozenset({0}))


class _Tokenizer:
    """As much of transformers' fast tokenizer as grammars read."""

    @property
    def backend_tokenizer(self) -> _Tokenizer:
        return self

    def to_str(self) -> str:
        """The `tokenizer.json`."""
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        vocabulary = {_letter(character): i for i, character in enumerate(CHARACTERS)}
        special = {"id": 0, "content": "<end>", "special": True}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        del vocabulary[_letter("\x00")]
        model = {"type": "BPE", "vocab": {"<end>": 0, **vocabulary}, "merges": []}
        return json.dumps({
            "version": "1.0", "added_tokens": [special | flags], "normalizer": None, "pre_tokenizer": level,
            "post_processor": None, "decoder": level, "model": model,
        })  # fmt: skip


def _letter(character: str) -> str:
    """GPT-2's printable stand-in for an ASCII character."""
    if character > " ":
        return character
    return chr(256 + ord(character))
