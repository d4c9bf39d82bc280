"""Heads beside a target: their safetensors files, which `edgespec_lab.train` writes, and Medusa's (Cai et al. 2024).

Medusa's head i adds a residual block of low rank to the last hidden state and looks at the token i + 1 places behind
the target's own next one. All heads share the rows of the target's output embedding for the most frequent tokens: one
small product.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cloud_gateway.core.sources.heads import Level
from edgespec.core.errors import ModelError

if TYPE_CHECKING:
    from cloud_gateway.models.target_model.inside import StatesTarget

WIDTH = 6
"""Tokens that a head is asked for."""
UNFIT = "The heads do not fit this target: train some for it (`python -m edgespec_lab.train`)."


class HeadTensors:
    """Heads as named tensors, one for each field of their dataclass."""

    kind: ClassVar[str]

    def fits(self) -> bool:
        """Whether their shapes fit each other; may raise as torch does."""
        raise NotImplementedError

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]  # type: ignore[arg-type]  # of each kind

    def on(self, device: torch.device) -> Self:
        """The same there."""
        return type(self)(*(getattr(self, name).to(device) for name in self.names()))

    def save(self, path: Path, target: bytes) -> None:
        """Writes them for the target of this digest; the file appears whole or not at all. Raises ModelError."""
        part = path.with_name(f".{path.name}.part")
        try:
            plain = {name: getattr(self, name).detach().contiguous() for name in self.names()}
            save_file(plain, part, {"kind": self.kind, "target": target.hex()})
            part.replace(path)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"The heads cannot be written to {path} ({error}); name another file.") from error

    @classmethod
    def load(cls, path: Path, target: bytes) -> Self:
        """Those of a file, of this kind for the target of this digest. Raises ModelError."""
        with opened(path) as file:
            facts = file.metadata() or {}
            if facts.get("kind") != cls.kind or set(file.keys()) != set(cls.names()):
                why = f"holds no {cls.kind} heads; `python -m edgespec_lab.train {cls.kind}` makes such a file."
                raise ModelError(f"{path} {why}")
            if facts.get("target") != target.hex():
                raise ModelError(f"The heads in {path} were trained for another target; train some for this one.")
            heads = cls(**{name: file.get_tensor(name) for name in cls.names()})
        try:
            fits = heads.fits()
        except (RuntimeError, IndexError, TypeError, ValueError):
            fits = False
        if not fits:
            raise ModelError(f"The heads in {path} have shapes that do not fit each other; train them again.")

        return heads


@contextmanager
def opened(path: Path) -> Iterator[safe_open]:
    """A file of heads, of which no tensor is read yet. Raises ModelError if it cannot be read, then or later."""
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        why = f"The heads in {path} cannot be read ({error}); train them again or name another file."
        raise ModelError(why) from error


@dataclass(slots=True)
class Heads(HeadTensors):
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
        return (hidden.unsqueeze(-2) + torch.einsum("...nr,nrw->...nw", inner, self.up)) @ self.output.T

    def fits(self) -> bool:
        (count, width, rank), size = self.down.shape, len(self.tokens)
        return count > 0 < size and self.up.shape == (count, rank, width) and self.output.shape == (size, width)


class MedusaHeads:
    """The heads beside a target (`HeadsModel`), on the engine's thread."""

    def __init__(self, heads: Heads, target: StatesTarget) -> None:
        """Raises ModelError where the target's states or tokens are others."""
        if heads.output.shape[1] != target.hidden_size or int(heads.tokens.max()) >= target.vocab_size:
            raise ModelError(UNFIT)
        self._heads = heads.on(target.device)
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
