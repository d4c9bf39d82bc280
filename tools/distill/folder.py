"""What a run keeps in its folder: what was asked for, the target's text, and checkpoints, each file whole or absent.

`settings.json`; `prompts-0000.json`, prompts that the target made up; `train-0003.safetensors` and
`held-0000.safetensors`, completions written together; and of training after 200 steps `step-000200.safetensors`, the
trained weights, and `step-000200.state.safetensors`, what it goes on with. The last two
checkpoints are kept with both: where the later one is damaged, a run goes on from the earlier one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from edgespec.core.errors import ConfigError, ModelError
from tools import target_text

_STEP = re.compile(r"^step-(\d+)\.safetensors$")
_SETTINGS = "settings.json"
Parts = Mapping[str, Tensor]


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
                _put(file, settings)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error.strerror}); name another folder.") from error
        kept = self.settings()
        for name, value in settings.items():
            if kept.get(name) != value:
                raise ConfigError(
                    f"{self.path} holds a run with {name} {kept.get(name)}, not {value}; delete it or name another one."
                )

    def settings(self) -> dict[str, Any]:
        """What was asked for. Raises ConfigError where no run has begun."""
        try:
            found: dict[str, Any] = json.loads((self.path / _SETTINGS).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path} holds no run of this command; name its folder.") from error
        return found

    def text(self, name: str, make: Callable[[], Parts]) -> dict[str, Tensor]:
        """The text of this name, made where it is not there yet. Raises ModelError."""
        file = self.path / f"{name}.safetensors"
        if not file.exists():
            _write(file, make())
        return _read(file)

    def prompts(self, name: str, make: Callable[[], list[str]]) -> list[str]:
        """The prompts of this name, made up where they are not there yet. Raises ModelError."""
        file = self.path / f"{name}.json"
        try:
            if not file.exists():
                _put(file, make())
            found: list[str] = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be used ({error}); delete it and run the same again.") from error
        return found

    def made_up(self, loaded: Any, count: int, together: int, seed: int, say: Callable[[str], object]) -> list[str]:
        """Prompts of which the target makes up `count`, so many at once. Raises ClientError, ModelError."""
        found, starts = list[str](), range(0, count, together)
        for number, at in enumerate(starts):
            make = partial(target_text.made_up, loaded, min(together, count - at), seed + number)
            found += self.prompts(f"prompts-{number:04}", make)
            say(f"prompts {number + 1} of {len(starts)}")
        return list(dict.fromkeys(found))

    def held_back(self) -> list[dict[str, Tensor]]:
        """What drafts are measured by. Raises ConfigError where the target has not written it yet, ModelError."""
        found = [_read(file) for file in sorted(self.path.glob("held-*.safetensors"))]
        if not found:
            raise ConfigError(f"{self.path} holds no text of the target yet; run `python -m tools.distill train`.")
        return found

    def save(self, step: int, weights: Parts, state: Parts, every: int) -> None:
        """Keeps a checkpoint. Of those before the last two only the weights stay, of every so many steps."""
        _write(self._state(step), state)
        _write(self._weights(step), weights)
        for old in self._steps()[:-2]:
            self._state(old).unlink(missing_ok=True)
            if old % every:
                self._weights(old).unlink()

    def newest(self) -> Checkpoint | None:
        """The last checkpoint, if there is one. Raises ModelError where it is damaged."""
        last = max((step for step in self._steps() if self._state(step).exists()), default=None)
        return None if last is None else Checkpoint(last, _read(self._weights(last)), _read(self._state(last)))

    def _steps(self) -> list[int]:
        return sorted(int(found[1]) for file in self.path.iterdir() if (found := _STEP.match(file.name)))

    def _weights(self, step: int) -> Path:
        return self.path / f"step-{step:06}.safetensors"

    def _state(self, step: int) -> Path:
        return self.path / f"step-{step:06}.state.safetensors"


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
        raise ModelError(f"{file} cannot be written ({error}); make room there and run the same again.") from error


def _read(file: Path) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} is not whole ({error}); delete it and run the same again.") from error
    return found
