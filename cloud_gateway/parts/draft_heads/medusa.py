"""Medusa heads beside a target (Cai et al. 2024).

Head i adds a residual block of low rank to the last hidden state and looks at the token i + 1 places behind the
target's own next one. All heads share the rows of the target's output embedding for the most frequent tokens: one
small product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from cloud_gateway.parts.draft_heads.source import HeadLevel
from cloud_gateway.parts.draft_heads.tensors import UNFIT, HeadTensors
from edgespec.core.errors import ModelError

if TYPE_CHECKING:
    from cloud_gateway.models.target_model.inside import StatesTarget

WIDTH = 6
"""Tokens that a head is asked for."""


@dataclass(slots=True)
class MedusaTensors(HeadTensors):
    """n heads of rank r over states of `width` numbers, and v tokens."""

    kind = "medusa"
    down: Tensor
    """[n, width, r]."""
    up: Tensor
    """[n, r, width]."""
    output: Tensor
    """[v, width]: rows of the target's output embedding."""
    tokens: Tensor
    """[v]: their token ids."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [..., n, v] after states [..., width]."""
        inner = F.silu(torch.einsum("...w,nwr->...nr", hidden, self.down))
        blocks = torch.einsum("...nr,nrw->...nw", inner, self.up)
        return (hidden.unsqueeze(-2) + blocks) @ self.output.T

    def fits(self) -> bool:
        count, width, rank = self.down.shape
        size = len(self.tokens)
        return count > 0 < size and self.up.shape == (count, rank, width) and self.output.shape == (size, width)


class MedusaHeads:
    """The heads beside a target (`Heads`), on the engine's thread."""

    def __init__(self, heads: MedusaTensors, target: StatesTarget) -> None:
        """Raises ModelError if the target's states or tokens are others."""
        if heads.output.shape[1] != target.hidden_size or int(heads.tokens.max()) >= target.vocab_size:
            raise ModelError(UNFIT)
        self._heads = heads.on(target.device)
        self._target = target

    def read(self, slot: int) -> None:
        """Does nothing: the state kept last is all that the heads see."""

    @torch.inference_mode()
    def ask(self, slot: int, token: int) -> Sequence[HeadLevel]:
        """What each head expects after the tokens kept last in this slot; nothing before its first pass."""
        hidden = self._target.hidden(slot)
        if hidden is None:
            return []

        chances = self._heads(hidden.to(self._heads.down.dtype)).softmax(-1)
        best = chances.topk(min(WIDTH, chances.shape[-1]))
        tokens = self._heads.tokens[best.indices].tolist()

        levels: list[HeadLevel] = []
        for following, chosen in enumerate(zip(tokens, best.values.tolist(), strict=True), 1):
            levels.append(HeadLevel(*chosen, [following] * len(chosen[0])))
        return levels
