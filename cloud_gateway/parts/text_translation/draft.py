"""The gateway's local draft with another tokenizer than the target's.

The draft model reads the text of a path in its own tokens, and its row of logits becomes one over the target's: a draft
token counts for the target's token that its text goes on with, in the text's own cut. A longer draft token stands for
several of the target's, of which those after the first are proposed without the model.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.models.drafts.gguf import LocalDraft
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked, Rank, TokenPath, best_children, largest
from edgespec.core.errors import ModelError
from edgespec.parts.text_translation.gguf import GgufTokenizer
from edgespec.parts.text_translation.translation import CommittedText, Translator, whole_characters
from edgespec.shared.threads import ThreadRule

log = logging.getLogger("cloud_gateway.parts.text_translation")

CUT = 12
"""Likeliest draft tokens whose text is cut into the target's tokens; others count if the target has the same token."""
NEVER = np.float32(-np.inf)


@dataclass(slots=True)
class _Request:
    text: CommittedText
    going_on: dict[TokenPath, Sequence[int]] = field(default_factory=dict)
    """The target's tokens that follow after a path, by a draft token that reaches beyond it."""


def translator(target: Path, draft: Path) -> Translator:
    """Between the tokenizers of two GGUF files. Raises ModelError for a kind that is not translated."""
    return Translator(GgufTokenizer(target), GgufTokenizer(draft))


@dataclass(frozen=True, slots=True)
class MakeTranslatedDraft:
    """The `MakeLocalDraft` of a pair of models."""

    pair: Translator

    def __call__(
        self,
        path: Path,
        *,
        context: int,
        requests: int,
        threads: int,
        thread_rule: ThreadRule,
        gpu_layers: int,
        target_vocab_size: int,
    ) -> TranslatedDraft:
        """The `MakeLocalDraft` of this pair."""
        log.info("the tokens of the local draft are translated to the target's")
        return TranslatedDraft(
            path,
            self.pair,
            context=context,
            requests=requests,
            threads=threads,
            thread_rule=thread_rule,
            gpu_layers=gpu_layers,
            target_vocab_size=target_vocab_size,
        )


class TranslatedDraft(LocalDraft):
    """A `DraftModel` in the target's tokens. Used on the engine's thread only."""

    _translates = True
    """Not while the draft measures itself, in its own tokens."""

    def __init__(self, path: Path, pair: Translator, *, target_vocab_size: int, **options: Any) -> None:
        """As `LocalDraft`."""
        self._pair = pair
        self._size = target_vocab_size
        self._own = np.flatnonzero(pair.numbers >= 0)
        self._translated: dict[Hashable, _Request] = {}
        self._translates = False
        super().__init__(path, **options)
        self._translates = True

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> int:
        """As `LocalDraft`. Raises ModelError too where there is no text to begin with."""
        if not self._translates:
            return super().open(request, tokens, scope)

        text = CommittedText(self._pair)
        certain = text.commit(tokens)
        if not certain:
            certain = list(text.forced())
            text.tail = b""
            text.tail_tokens = []
        if not certain:
            raise ModelError("the draft model has no token to begin with")

        self._translated[request] = _Request(text)
        return super().open(request, certain, scope)

    def commit(self, request: Hashable, tokens: Sequence[int]) -> int:
        if not self._translates:
            return super().commit(request, tokens)

        state = self._translated[request]
        state.going_on = {
            path[len(tokens) :]: rest for path, rest in state.going_on.items() if path[: len(tokens)] == tuple(tokens)
        }
        certain = state.text.commit(tokens)
        if certain:
            return super().commit(request, certain)
        return 0

    def close(self, request: Hashable, *, keep: bool = True) -> None:
        self._translated.pop(request, None)
        super().close(request, keep=keep)

    def draft(self, asked: Sequence[Asked]) -> list[list[Proposal]]:
        """As `LocalDraft`. Nothing is proposed after a token that has no text."""
        if not self._translates:
            return super().draft(asked)

        found = [dict[TokenPath, Proposal]() for _ in asked]
        read = [self._read(one, own) for one, own in zip(asked, found, strict=True)]
        if drafting := [one for one in read if one.paths]:
            super().draft(drafting)
        return [
            [own.get(path) or Proposal([], [], 0.0) for path in one.paths]
            for one, own in zip(asked, found, strict=True)
        ]

    def _read(self, one: Asked, found: dict[TokenPath, Proposal]) -> Asked:
        """What the draft has to read for it, and then finds; finds what follows without it."""
        state = self._translated[one.request]
        rank = one.rank or best_children
        read: dict[TokenPath, TokenPath] = {}
        for path in one.paths:
            text = self._text(state, path)
            if path in state.going_on:
                found[path] = self._go_on(state, path, rank)
            elif text is not None:
                segments = self._pair.borders.parted(text)
                read.setdefault(tuple(token for part in segments for token in self._pair.read(part)), path)

        def over_targets(logits: NDArray[np.float32], drafts: TokenPath, width: int) -> Proposal:
            path = read[drafts]
            found[path] = proposal = rank(self._row(state, path, logits), path, width)
            return proposal

        return Asked(one.request, list(read), one.width, over_targets)

    def _text(self, state: _Request, path: TokenPath) -> bytes | None:
        """The text after what the draft has read; None where a token has none."""
        pieces = [self._pair.target.pieces[token] for token in path]
        if None in pieces:
            return None
        return state.text.tail + b"".join(piece or b"" for piece in pieces)

    def _go_on(self, state: _Request, path: TokenPath, rank: Rank) -> Proposal:
        token, *rest = state.going_on[path]
        if rest:
            state.going_on[(*path, token)] = rest
        row = np.full(self._size, NEVER, np.float32)
        row[token] = 0.0
        return rank(row, path, 1)

    def _row(self, state: _Request, path: TokenPath, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits over the target's tokens after a path."""
        pair = self._pair
        text = self._text(state, path) or b""
        row = np.full(self._size, NEVER, np.float32)
        missing = text[len(whole_characters(text)) :]
        if not missing:
            row[pair.numbers[self._own]] = logits[self._own]
        for token in largest(logits, CUT).tolist():
            if token < len(pair.draft.pieces):
                piece = pair.draft.pieces[token]
            else:
                piece = None
            if not piece or not piece.startswith(missing):
                continue
            same, (first, *rest) = int(pair.numbers[token]), self._following(state, path, text, piece[len(missing) :])
            if first == same and not missing:
                continue
            if same >= 0 and not missing:
                row[same] = NEVER
            if first >= 0:
                row[first] = np.logaddexp(row[first], logits[token])
                if rest:
                    state.going_on.setdefault((*path, first), rest)

        return row

    def _following(self, state: _Request, path: TokenPath, text: bytes, piece: bytes) -> Sequence[int]:
        """The target's tokens for `piece` behind the text; (-1,) where its text is cut otherwise."""
        *over, last = self._pair.borders.parted(text + piece, 1)
        tokens = [token for one in (*over, last) for token in self._pair.cut(one)]
        known = [*state.text.tail_tokens, *path]
        if tokens[: len(known)] == known and len(tokens) > len(known):
            return tokens[len(known) :]
        return (-1,)
