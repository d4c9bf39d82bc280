"""What a run keeps in its folder: what was asked for, the target's text, and checkpoints, each file whole or absent.

`settings.json`; `train-0003.safetensors` and `held-0000.safetensors`, a batch each; `step-000200.safetensors`, the
trained weights after 200 steps, and for the newest `step-000200.state.safetensors`, what training goes on with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from edgespec.core.errors import ConfigError, ModelError
from tools.target_text import Batch

_STEP = re.compile(r"^step-(\d+)\.safetensors$")
_SETTINGS = "settings.json"


class Checkpoint(NamedTuple):
    """Training after `step` steps."""

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Tensor]


class Folder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Keeps what was asked for. Raises ConfigError where the folder holds a run that asked for something else."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.path / _SETTINGS
            if not file.exists():
                file.write_text(json.dumps(settings, indent=1) + "\n")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error.strerror}); name another folder.") from error
        kept = self.settings()
        for name, value in settings.items():
            if kept.get(name) != value:
                raise ConfigError(
                    f"{self.path} holds a run with {name} {kept.get(name)}, not {value}; name another folder."
                )

    def settings(self) -> dict[str, Any]:
        """What was asked for. Raises ConfigError where no run has begun."""
        try:
            found: dict[str, Any] = json.loads((self.path / _SETTINGS).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path} holds no run of this command; name its folder.") from error
        return found

    def batch(self, name: str, make: Callable[[], Batch]) -> Batch:
        """The batch of this name, made where it is not there yet."""
        file = self.path / f"{name}.safetensors"
        if not file.exists():
            _write(file, make().parts())
        return Batch(**_read(file))

    def held_back(self) -> list[Batch]:
        """What drafts are measured by. Raises ConfigError where the target has not written it yet."""
        found = [Batch(**_read(file)) for file in sorted(self.path.glob("held-*.safetensors"))]
        if not found:
            raise ConfigError(f"{self.path} holds no text of the target yet; run `python -m tools.distill train`.")
        return found

    def save(self, step: int, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Keeps a checkpoint; of earlier ones only the weights stay."""
        _write(self._state(step), state)
        _write(self.path / f"step-{step:06}.safetensors", weights)
        for file in self.path.glob("*.state.safetensors"):
            if file != self._state(step):
                file.unlink()

    def newest(self) -> Checkpoint | None:
        """The last checkpoint, if there is one."""
        steps = [int(found[1]) for file in self.path.iterdir() if (found := _STEP.match(file.name))]
        if not steps:
            return None
        last = max(steps)
        return Checkpoint(last, _read(self.path / f"step-{last:06}.safetensors"), _read(self._state(last)))

    def _state(self, step: int) -> Path:
        return self.path / f"step-{step:06}.state.safetensors"


def _write(file: Path, parts: Mapping[str, Tensor]) -> None:
    part = file.with_suffix(".part")
    try:
        save_file({name: tensor.detach().contiguous().cpu() for name, tensor in parts.items()}, part)
        part.replace(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be written ({error}); make room there and run the same again.") from error


def _read(file: Path) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} is not whole ({error}); delete it and run the same again.") from error
    return found
