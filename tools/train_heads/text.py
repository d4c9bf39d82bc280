"""What heads learn from: prompts with the target's own completions, as its states and the tokens after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgespec.core.errors import ConfigError
from tools import target_text

Row = dict[str, object]
TOO_SHORT = "The target's completions are too short to learn from: give other prompts, or a greater --max-tokens."


class Text(NamedTuple):
    """Texts, one behind the other: of each n - 1 pairs of a state and the token after it, and an end."""

    states: Tensor
    """[n, width] float32: what the output embedding was given; 0 at an end."""
    tokens: Tensor
    """[n]; -1 at an end."""
    written: Tensor
    """[n] bool: the target chose the token; True at an end too."""

    def completions(self) -> Text:
        """Without the pairs of prompts."""
        return Text(self.states[self.written], self.tokens[self.written], self.written[self.written])

    def spans(self) -> list[tuple[int, int]]:
        """Of each text its first pair and its end."""
        ends = (self.tokens < 0).nonzero()[:, 0].tolist()
        return list(zip([0, *(end + 1 for end in ends)], ends, strict=False))


@dataclass(frozen=True, slots=True)
class Pupil:
    """Heads that are trained."""

    weights: Sequence[Tensor]
    loss: Callable[[], Tensor]
    """Of a random part of the text."""
    save: Callable[[], object]
    measure: Callable[[Text], list[Row]]
    """How often they are right on another text."""


@torch.no_grad()
def states(model: Any, batches: Sequence[Sequence[Sequence[int]]], count: int) -> Text:
    """The texts of these prompts with completions of up to `count` tokens; states in bfloat16."""
    found, tokens, written = list[Tensor](), list[int](), list[bool]()
    for prompts in batches:
        batch = target_text.write(model, prompts, count, target_text.ends_of(model))
        for rows, real, (sequence, length) in zip(
            target_text.states(model, batch), batch.mask, batch.sequences(), strict=True
        ):
            found += [rows[real][:-1], torch.zeros_like(rows[:1])]
            tokens += [*sequence[1:], -1]
            written += [False] * (len(sequence) - 1 - length) + [True] * (length + 1)
    return Text(torch.cat(found), torch.tensor(tokens), torch.tensor(written))


def joined(parts: Iterable[Mapping[str, Tensor]]) -> Text:
    """One text, its states in float32, of what `states` returned."""
    found = list(parts)
    text = Text(*(torch.cat([part[field] for part in found]) for field in Text._fields))
    return text._replace(states=text.states.float())


def frequent(text: Text, size: int) -> Tensor:
    """Ids of the tokens that the target chose most often, at most `size` of them, in rising order.

    Raises ConfigError where it chose none.
    """
    chosen = Counter(text.tokens[text.written & (text.tokens >= 0)].tolist())
    if not chosen:
        raise ConfigError(TOO_SHORT)
    return torch.tensor(sorted(token for token, _ in chosen.most_common(size)))
