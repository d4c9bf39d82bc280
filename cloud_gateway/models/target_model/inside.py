"""Protocols of a target that offers more than `Target`: its states or layers, with which parts draft, or draws.

An engine that computes in torch offers states and layers; llama.cpp offers none of the three. The parts, and the
engine for draws, find out by `isinstance`, when the target is loaded. This file holds types only, and imports no torch
when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.models.target_model import Target

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class StateReader(Protocol):
    """Is given what the output embedding is given for each committed token, slot by slot and in their order.

    What it has of a slot stays when its request ends, as keys and values do: a later one may reuse it. It takes a state
    in at once and evaluates nothing: it is called within a pass.
    """

    def open(self, slot: int, donor: int, reused: int) -> object:
        """A request begins. Its first `reused` tokens are those of slot `donor`, maybe its own.

        Their states are not given again.
        """

    def add(self, slot: int, states: Tensor) -> object:
        """The states [n, hidden_size] of the slot's next tokens."""

    def drop(self, slot: int) -> object:
        """Nothing of the slot is reused any more: nothing of it may stay in memory."""


@runtime_checkable
class StatesTarget(Target, Protocol):
    """A target that shows what its output embedding is given."""

    hidden_size: int
    device: torch.device
    embedding: Tensor
    """Of its input, [vocab_size, width]."""

    def show_states(self, reader: StateReader) -> None:
        """This reader alone is given the states of committed tokens. To be called before the first `open`."""

    def held(self, slot: int) -> Sequence[int]:
        """Tokens whose keys and values are in this slot."""

    def hidden(self, slot: int) -> Tensor | None:
        """The input of the output embedding for the row that was kept last in this slot, [hidden_size]."""


class DraftingLayers(Protocol):
    """Some of a target's layers, to draft with. Each line of tokens has keys and values of its own."""

    max_tokens: int
    """Tokens that a line may have."""

    def cut(self, line: int, length: int) -> None:
        """Keeps the first `length` tokens of a line."""

    def copy(self, line: int, other: int, length: int) -> None:
        """Replaces a line by the first `length` tokens of another one."""

    def evaluate(self, tokens: Sequence[tuple[int, Sequence[int]]], *, head: bool) -> Sequence[NDArray[np.float32]]:
        """One pass over tokens behind each of these lines, by its number.

        Returns the logits after the last token of each, [vocab_size], or nothing without `head`.
        """


@runtime_checkable
class LayersTarget(Target, Protocol):
    """A target that can be computed with some of its layers only."""

    def keeping(self, layers: Sequence[int], lines: int) -> DraftingLayers:
        """The same weights with these layers, counted from 0, and empty lines, numbered from 0.

        Raises ModelError if the target does not have these layers, or cannot be computed without the others.
        """


@runtime_checkable
class DrawingTarget(Target, Protocol):
    """A target that draws each token itself, as a server does behind its API: it needs the request, and has no logits.

    The row of a pass shows the token that was drawn after it, so a method of verification can follow draws and nothing
    else. A row raises ClientError if the request cannot be served: the client gets it as the response.
    """

    def begin(self, slot: int, request: GenerationRequest) -> None:
        """Called once after each `open`, before the first pass."""

    def ready(self, slot: int, wake: Callable[[], None]) -> bool:
        """Whether a pass brings a token without a long wait; if not, `wake` is called once it does, on any thread."""
