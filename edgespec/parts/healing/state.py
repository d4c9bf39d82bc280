"""What a run keeps beside its output, so that another one goes on: texts of the target, parameters, AdamW's averages.

One safetensors file, readable by its owner only, because it has the prompts and completions in it. It is whole or
absent: it is written under another name first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from edgespec.core.errors import ConfigError, ModelError
from edgespec.parts.healing.target import Passage

Settings = Mapping[str, str | int]
"""The settings that two runs must have in common for one to go on from the other."""


class Progress(msgspec.Struct, frozen=True):
    """How far a run is."""

    step: int = 0
    seconds: float = 0.0
    """Spent on writing and training."""
    seen: int = 0
    """Tokens of completions that were learnt from, each time counted."""
    next_prompt: int = 0
    """How many prompts of the file, or rounds of invented ones, were used."""
    before: float = 0.0
    """The match rate of the held-back text in torch before the first step."""


@dataclass(frozen=True)
class Saved:
    """The content of a state file."""

    counts: Progress
    uses: list[int]
    """How often each passage was learnt from."""
    passages: list[Passage]
    held: list[Passage]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Parameters and the optimiser's averages."""


class _Header(msgspec.Struct):
    """The metadata of the file."""

    settings: dict[str, str | int]
    counts: Progress
    uses: list[int]


def save(
    path: Path,
    settings: Settings,
    saved: Saved,
) -> None:
    """Writes the file in the place of the one before. Raises ModelError if there is no room."""
    from safetensors import SafetensorError
    from safetensors.torch import save as encoded

    header = msgspec.json.encode(
        _Header(
            dict(settings),
            saved.counts,
            saved.uses,
        )
    ).decode()
    tensors = {name: tensor.detach().contiguous() for name, tensor in saved.tensors.items()}
    tensors |= _arrays("passage", saved.passages)
    tensors |= _arrays("held", saved.held)

    part = path.with_name(f".{path.name}.part")
    try:
        data = encoded(tensors, {"state": header})
        with os.fdopen(
            os.open(
                part,
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
                0o600,
            ),
            "wb",
        ) as file:
            file.write(data)
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise ModelError(f"{path} cannot be written ({error}); make room there, and go on with --resume.") from error


def resumed(path: Path, settings: Settings) -> Saved:
    """Raises ConfigError if the file is missing, damaged, or of a run with other settings."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            header = msgspec.json.decode(
                file.metadata()["state"],
                type=_Header,
            )
            for name in file.keys():  # noqa: SIM118  it is no dictionary
                tensors[name] = file.get_tensor(name)
    except FileNotFoundError:
        raise ConfigError(f"There is no {path} to resume from; leave --resume out.") from None
    except (OSError, SafetensorError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is damaged ({error}); remove it, and leave --resume out.") from error

    for name, value in settings.items():
        if header.settings.get(name) != value:
            raise ConfigError(
                f"{path} is of a run with another {name} ({header.settings.get(name)}, not {value}): repeat that "
                "command with --resume, or name another --output."
            )

    passages = _passages(tensors, "passage")
    held = _passages(tensors, "held")
    return Saved(
        header.counts,
        header.uses,
        passages,
        held,
        tensors,
    )


def _arrays(kind: str, passages: Sequence[Passage]) -> dict[str, Tensor]:
    """All passages as four tensors, one behind the other: the rows of each are counted in `lengths`."""
    if not passages:
        return {}

    lengths = [(len(passage.tokens), passage.written) for passage in passages]
    return {
        f"{kind}.lengths": torch.tensor(lengths, dtype=torch.int32),
        f"{kind}.tokens": _joined(passage.tokens for passage in passages),
        f"{kind}.ranked": _joined(passage.ranked for passage in passages),
        f"{kind}.log_probs": _joined(passage.log_probs for passage in passages),
    }


def _joined(arrays: Iterable[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(list(arrays)))


def _passages(tensors: dict[str, Tensor], kind: str) -> list[Passage]:
    """Takes the passages of a kind out of the tensors of a file."""
    if f"{kind}.lengths" not in tensors:
        return []

    lengths = tensors.pop(f"{kind}.lengths").tolist()
    tokens = tensors.pop(f"{kind}.tokens").numpy()
    ranked = tensors.pop(f"{kind}.ranked").numpy()
    log_probs = tensors.pop(f"{kind}.log_probs").numpy()

    found: list[Passage] = []
    token = 0
    row = 0
    for length, written in lengths:
        rows = slice(row, row + written)
        found.append(
            Passage(
                tokens[token : token + length],
                ranked[rows],
                log_probs[rows],
            )
        )
        token += length
        row += written
    return found
