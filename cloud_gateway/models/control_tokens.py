"""The control tokens of a model, and a tokenizer that makes them from stand-ins only.

Every control token is renamed to one code point that no client may send (chat_template.py). What is
between two of them is cut and merged exactly as by the model's own tokenizer, since that too sets such tokens apart
before it looks at the rest. A control token that is spelled out in the text is cut like any other text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cloud_gateway.models.chat_template import STAND_IN, Span
from edgespec.core.errors import ModelError

_HTML = (
    "table caption thead tbody tfoot tr th td h[1-6] blockquote strong em b code sub sup i u s ul ol li pre p div br hr"
)
_ORDINARY = re.compile(rf"[\s\u2581]+|[\w\s]+|</?(?:{_HTML.replace(' ', '|')})>")
"""Added tokens that are only text: runs of white space, words, HTML tags. Gemma and Phi have them."""


class ControlTokens:
    """The control tokens of a fast tokenizer. Raises ModelError where they cannot be distinguished from text."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        """`template`: source of the chat template; added tokens in it, such as `<think>`, are control tokens."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError("The model's tokenizer is not one of the tokenizers library; chats need such a one.")
        state: dict[str, Any] = json.loads(backend.to_str())
        self.ids = {
            str(token["content"]): int(token["id"])
            for token in state["added_tokens"]
            if token["content"] and (token["special"] or _steers(token["content"], template))
        }
        self._names = {text: chr(STAND_IN + n) for n, text in enumerate(self.ids)}
        unknown = _unknown(state["model"])
        self._tokenizer = _renamed(state, self._names)
        if any(self._tokenizer.token_to_id(name) != self.ids[text] for text, name in self._names.items()):
            raise ModelError("The special tokens of the model's tokenizer contradict its vocabulary; use another one.")
        self._steering = frozenset(self.ids.values())
        ends = (tokenizer.bos_token, tokenizer.eos_token)
        if unknown in self.ids and unknown not in ends and unknown not in template:
            # A tokenizer without bytes encodes unknown letters as this token, so ordinary text may contain it.
            self._steering -= {self.ids[unknown]}

    def encode(self, text: str, written: Sequence[Span]) -> list[int]:
        """The tokens of a chat whose control tokens are at these places and nowhere else."""
        pieces, at = [], 0
        for start, end, token in written:
            pieces += [text[at:start], self._names[token]]
            at = end
        tokens: list[int] = self._tokenizer.encode("".join([*pieces, text[at:]]), add_special_tokens=False).ids
        return tokens

    def among(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in tokens if token in self._steering]

    def of(self, written: Sequence[Span]) -> list[int]:
        """The ids of the control tokens at these places."""
        return self.among([self.ids[token] for _, _, token in written])


def _steers(text: str, template: str) -> bool:
    """Whether an added token not marked as special is a control token: DeepSeek's `<｜User｜>`, Qwen's `<think>`."""
    return not text.isspace() and (text in template or not _ORDINARY.fullmatch(text))


def _renamed(state: dict[str, Any], names: Mapping[str, str]) -> Any:
    """The tokenizer with these tokens renamed, so that only the new names are encoded as them."""
    from tokenizers import Tokenizer

    model = state["model"]
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {names.get(text, text): i for text, i in model["vocab"].items()}
    elif isinstance(model.get("vocab"), list):
        model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
    if model.get("merges"):
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [list(pair) for pair in pairs if not {*pair, "".join(pair)} & names.keys()]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    return Tokenizer.from_str(json.dumps({**state, "post_processor": None, "truncation": None, "padding": None}))


def _unknown(model: Mapping[str, Any]) -> str:
    """The token for text that the vocabulary lacks, or an empty string."""
    vocabulary, at = model.get("vocab"), model.get("unk_id")
    if isinstance(vocabulary, list):
        return str(vocabulary[at][0]) if isinstance(at, int) else ""
    return model.get("unk_token") or ""
