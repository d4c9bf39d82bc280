"""Medusa heads over the last hidden state of a torch target, from a safetensors file that `tools.train` writes.

Head i adds a residual block of low rank to the state and looks at the token i + 1 places behind the target's own next
one. All heads share the rows of the target's output embedding for the most frequent tokens: one small product.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from cloud_gateway.core.sources.heads import Level
from cloud_gateway.models.drafts import heads as files
from edgespec.core.errors import ModelError

if TYPE_CHECKING:
    from cloud_gateway.models.target_model.torch import TorchTarget

WIDTH = 6
"""Tokens that a head is asked for."""


@dataclass(slots=True)
class Heads:
    """n heads of rank r over states of `width` numbers, and v tokens."""

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
        return (hidden.unsqueeze(-2) + torch.einsum("...nr,nrw->...nw", inner, self.up)) @ self.output.T

    def save(self, path: Path, target: bytes) -> None:
        """Writes them for the target of this digest. Raises ModelError."""
        files.save(path, "medusa", target, {name: getattr(self, name) for name in NAMES})


NAMES = tuple(Heads.__dataclass_fields__)


def load(path: Path, target: bytes) -> Heads:
    """The heads of a file, for the target of this digest. Raises ModelError."""
    heads = Heads(**files.read(path, "medusa", target, NAMES))
    count, width, rank = heads.down.shape if heads.down.dim() == 3 else (0, 0, 0)
    size = len(heads.tokens)
    if not count or heads.up.shape != (count, rank, width) or heads.output.shape != (size, width) or not size:
        raise ModelError(f"The heads in {path} have shapes that do not fit each other; train them again.")
    return heads


class MedusaHeads:
    """The heads beside a target (`HeadsModel`), on the engine's thread."""

    def __init__(self, heads: Heads, target: TorchTarget) -> None:
        """Raises ModelError where the target's states or tokens are others."""
        if heads.output.shape[1] != target.hidden_size or int(heads.tokens.max()) >= target.vocab_size:
            raise ModelError("The heads do not fit this target: train some for it (`python -m tools.train`).")
        self._heads = Heads(*(getattr(heads, name).to(target.device) for name in NAMES))
        self._target = target

    def read(self, slot: int) -> None:
        """Does nothing: the state kept last is all that the heads see."""

    @torch.inference_mode()
    def ask(self, slot: int, token: int) -> list[Level]:
        """What each head expects after the tokens kept last in this slot; nothing before its first pass."""
        hidden = self._target.hidden(slot)
        if hidden is None:
            return []
        chances = self._heads(hidden.to(self._heads.down.dtype)).softmax(-1)
        best = chances.topk(min(WIDTH, chances.shape[-1]))
        tokens = self._heads.tokens[best.indices].tolist()
        pairs = zip(tokens, best.values.tolist(), strict=True)
        return [Level(*pair, [number] * len(pair[0])) for number, pair in enumerate(pairs, 1)]


def beside(target: TorchTarget, digest: bytes, path: Path) -> MedusaHeads:
    """The heads of a file beside their target. Raises ModelError."""
    return MedusaHeads(load(path, digest), target)
