"""Constraints of a few JSON schemas over a small tokenizer whose tokens are characters."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

from cloud_gateway.api.tools import Wanted
from cloud_gateway.core.verify.interface import Constraint
from cloud_gateway.models.grammar import Grammars, Schema

CHARACTERS = '\x00 {}[]":,-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ'
"""Id 0 ends the answer."""


def constraint_of(wanted: Wanted) -> Callable[[], Constraint]:
    """Makes a fresh constraint for each answer; raises ClientError 400 as the gateway does."""
    return _compiled(json.dumps(wanted.schema), wanted.param, wanted.lark).beside


@functools.lru_cache(maxsize=16)
def _compiled(schema: str, param: str, lark: str) -> Schema:
    return grammars().compile(json.loads(schema), b"", param, lark)


@functools.cache
def grammars() -> Grammars:
    """The gateway's compiler over this tokenizer."""
    return Grammars(_Tokenizer(), len(CHARACTERS), frozenset({0}))


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
    return character if character > " " else chr(256 + ord(character))
