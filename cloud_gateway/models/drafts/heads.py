"""The safetensors files of heads beside a target: of one kind, and for the target that they were trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from edgespec.core.errors import ModelError


def save(path: Path, kind: str, target: bytes, tensors: Mapping[str, Tensor]) -> None:
    """Writes heads for the target of this digest; the file appears whole or not at all. Raises ModelError."""
    part = path.with_name(f".{path.name}.part")
    try:
        plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(plain, part, {"kind": kind, "target": target.hex()})
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"The heads cannot be written to {path} ({error}); name another file.") from error


def read(path: Path, kind: str, target: bytes, names: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of these names, of heads of this kind for the target of this digest. Raises ModelError."""
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            if facts.get("kind") != kind or set(file.keys()) != set(names):
                raise ModelError(f"{path} holds no {kind} heads; `python -m tools.train {kind}` makes such a file.")
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The heads in {path} cannot be read ({error}); train them again or name another file."
        ) from error
    if facts.get("target") != target.hex():
        raise ModelError(f"The heads in {path} were trained for another target; train some for this one.")
    return tensors
