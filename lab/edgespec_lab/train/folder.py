"""What a training keeps in its folder: the target's text, which serves every kind of heads, and a checkpoint of each.

`text.json`, what the text was asked for; `prompts-0000.json`, prompts that the target made up;
`train-0003.safetensors` and `held-0000.safetensors`, completions written together; for heads `medusa.json`, what was
asked for, and `medusa.checkpoint`. Each file is whole or absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from edgespec.core.errors import ConfigError, ModelError

Parts = Mapping[str, Tensor]


class Folder:
    """The folder of one target's text."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Keeps what was asked for. Raises ConfigError if the folder holds a `name` that asked for something else."""
        file = self.path / f"{name}.json"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                _put(file, settings)
            kept = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be used ({error}); name another folder.") from error
        for key, value in settings.items():
            if kept.get(key) != value:
                raise ConfigError(
                    f"{file} was made with {key} {kept.get(key)}, not {value}: delete it, or name another folder."
                )

    def text(self, name: str, make: Callable[[], Parts]) -> dict[str, Tensor]:
        """The text of this name, made if it is not there yet. Raises ModelError."""
        file = self.path / f"{name}.safetensors"
        if not file.exists():
            _write(file, make())
        return _read(file)

    def prompts(self, name: str, make: Callable[[], list[str]]) -> list[str]:
        """The prompts of this name, made up if they are not there yet. Raises ModelError."""
        file = self.path / f"{name}.json"
        try:
            if not file.exists():
                _put(file, make())
            found: list[str] = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be used ({error}); delete it and run the same again.") from error

        return found

    def held_back(self) -> list[dict[str, Tensor]]:
        """What drafts are measured by. Raises ConfigError if the target has not written it yet, ModelError."""
        found = [_read(file) for file in sorted(self.path.glob("held-*.safetensors"))]
        if not found:
            raise ConfigError(
                f"{self.path} holds no text of the target yet; run `python -m edgespec_lab.train medusa`."
            )
        return found

    def save(self, kind: str, state: Parts) -> None:
        """Keeps a checkpoint in the place of the one before. Raises ModelError."""
        _write(self.path / f"{kind}.checkpoint", state)

    def checkpoint(self, kind: str) -> dict[str, Tensor] | None:
        """What was saved last, if anything was. Raises ModelError for a damaged file."""
        file = self.path / f"{kind}.checkpoint"
        if file.exists():
            return _read(file)
        return None


def _put(file: Path, value: object) -> None:
    """Raises OSError."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    part.replace(file)


def _write(file: Path, parts: Parts) -> None:
    part = file.with_suffix(".part")
    try:
        save_file({name: tensor.detach().contiguous().cpu() for name, tensor in parts.items()}, part)
        part.replace(file)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise ModelError(f"{file} cannot be written ({error}); make room there and run the same again.") from error


def _read(file: Path) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} is not whole ({error}); delete it and run the same again.") from error
    return found
