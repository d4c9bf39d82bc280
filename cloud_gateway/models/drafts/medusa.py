"""Medusa heads over the last hidden state of a torch target, from a safetensors file that `tools.train_heads` writes.

Head i adds a residual block of low rank to the state and looks at the token i + 1 places behind the target's own next
one. All heads share the rows of the target's output embedding for the most frequent tokens: one small product.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cloud_gateway.core.policies.estimators import Ewma
from cloud_gateway.core.sources.medusa import Level
from edgespec.core.errors import ModelError

if TYPE_CHECKING:
    from cloud_gateway.models.target_model.torch import TorchTarget

WIDTH = 6
"""Tokens that a head is asked for."""
_WEIGHT = 0.1
"""Weight of the newest measurement in the moving averages."""


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
        """Writes them for the target of this digest; the file appears whole or not at all. Raises ModelError."""
        part = path.with_name(f".{path.name}.part")
        try:
            tensors = {name: getattr(self, name).detach().contiguous() for name in NAMES}
            save_file(tensors, part, {"kind": "medusa", "target": target.hex()})
            part.replace(path)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"The heads cannot be written to {path} ({error}); name another file.") from error


NAMES = tuple(Heads.__dataclass_fields__)


def load(path: Path, target: bytes) -> Heads:
    """The heads of a file, for the target of this digest. Raises ModelError."""
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            if facts.get("kind") != "medusa" or set(file.keys()) != set(NAMES):
                raise ModelError(f"{path} holds no Medusa heads; `python -m tools.train_heads` makes such a file.")
            heads = Heads(**{name: file.get_tensor(name) for name in NAMES})
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The heads in {path} cannot be read ({error}); train them again or name another file."
        ) from error
    if facts.get("target") != target.hex():
        raise ModelError(f"The heads in {path} were trained for another target; train some for this one.")
    count, width, rank = heads.down.shape if heads.down.dim() == 3 else (0, 0, 0)
    size = len(heads.tokens)
    if not count or heads.up.shape != (count, rank, width) or heads.output.shape != (size, width) or not size:
        raise ModelError(f"The heads in {path} have shapes that do not fit each other; train them again.")
    return heads


class MedusaHeads:
    """The heads beside a target, on the engine's thread. `cost`: what asking takes, in passes of the target."""

    def __init__(self, heads: Heads, target: TorchTarget, clock: Callable[[], float] = time.perf_counter) -> None:
        """Raises ModelError where the target's states or tokens are others."""
        if heads.output.shape[1] != target.hidden_size or int(heads.tokens.max()) >= target.vocab_size:
            raise ModelError("The heads do not fit this target: train some for it (`python -m tools.train_heads`).")
        moved = (getattr(heads, name).to(target.device) for name in NAMES)
        self._heads, self._target, self._clock = Heads(*moved), target, clock
        self._ask_s, self._pass_s = Ewma(_WEIGHT), Ewma(_WEIGHT)

    @property
    def cost(self) -> float:
        """Of asking for one request, in passes of the target; 0 before both were measured."""
        return (self._ask_s.value or 0.0) / self._pass_s.value if self._pass_s.value else 0.0

    @torch.inference_mode()
    def ask(self, slot: int) -> list[Level]:
        """What each head expects after the tokens kept last in this slot; nothing before its first pass."""
        hidden = self._target.hidden(slot)
        if hidden is None:
            return []
        began = self._clock()
        chances = self._heads(hidden.to(self._heads.down.dtype)).softmax(-1)
        best = chances.topk(min(WIDTH, chances.shape[-1]))
        tokens = self._heads.tokens[best.indices].tolist()
        levels = [Level(*pair) for pair in zip(tokens, best.values.tolist(), strict=True)]
        self._ask_s.sample(self._clock() - began)
        self._pass_s.sample(sum(one.seconds for one in self._target.passes))
        return levels
