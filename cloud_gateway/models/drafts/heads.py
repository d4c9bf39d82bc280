"""The safetensors files of heads beside a target: of one kind, and for the target that they were trained on."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cloud_gateway.core.sources.asking import HEADS
from edgespec.core.errors import ModelError

if TYPE_CHECKING:
    from cloud_gateway.models.drafts import HeadsModel
    from cloud_gateway.models.target_model.torch import TorchTarget


def beside(target: TorchTarget, digest: bytes, files: Sequence[Path]) -> dict[str, HeadsModel]:
    """The heads of these files beside the target of this digest, by the name of their source. Raises ModelError."""
    found: dict[str, HeadsModel] = {}
    for path in files:
        kind = _facts(path).get("kind", "")
        if kind not in HEADS or kind in found:
            why = "other heads of its kind are named too" if kind in found else f"holds none of {', '.join(HEADS)}"
            raise ModelError(f"{path} in `sources.heads`: it {why}; `python -m tools.train` makes such a file.")
        found[kind] = importlib.import_module(f"cloud_gateway.models.drafts.{kind}").beside(target, digest, path)
    return found


def save(path: Path, kind: str, target: bytes, tensors: Mapping[str, Tensor]) -> None:
    """Writes heads for the target of this digest; the file appears whole or not at all. Raises ModelError."""
    part = path.with_name(f".{path.name}.part")
    try:
        plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(plain, part, {"kind": kind, "target": target.hex()})
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"The heads cannot be written to {path} ({error}); name another file.") from error


def _facts(path: Path) -> Mapping[str, str]:
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(f"The heads in {path} cannot be read ({error}); train them again or name another file.")


def read(path: Path, kind: str, target: bytes, names: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of these names, of heads of this kind for the target of this digest. Raises ModelError."""
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            if facts.get("kind") != kind or set(file.keys()) != set(names):
                raise ModelError(f"{path} holds no {kind} heads; `python -m tools.train {kind}` makes such a file.")
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error
    if facts.get("target") != target.hex():
        raise ModelError(f"The heads in {path} were trained for another target; train some for this one.")
    return tensors
