"""Heads as files: the named tensors of a safetensors file, which `edgespec_lab.train` writes for one target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from edgespec.core.errors import ModelError

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
