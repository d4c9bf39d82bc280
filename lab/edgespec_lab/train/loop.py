"""The one loop of training: AdamW, whatever is trained, which goes on anywhere with the same result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgespec.core.errors import ModelError
from edgespec_lab import verbs
from edgespec_lab.train.folder import Folder, Parts

WARM_UP = 0.05
"""Share of the training over which the learning rate rises."""
LAST_RATE = 0.1
"""Learning rate of the last step, as a share of the highest."""
DECAY = 0.01
BETAS = (0.9, 0.95)
CLIP = 1.0
KEEP_S = 60.0
"""Seconds between checkpoints."""
Row = dict[str, Any]
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Pupil:
    """What is trained."""

    weights: Mapping[str, Tensor]
    loss: Callable[[int], Tensor]
    """The loss at a step, which depends on weights and the step's number alone."""
    finish: Callable[[], Sequence[Row]]
    """Writes the file; how often it is right on the text that was held back."""


def rate(share: float, highest: float) -> float:
    """Learning rate after a share of the training: a linear rise, then half a cosine down to LAST_RATE of it."""
    if share < WARM_UP:
        return highest * share / WARM_UP
    done = (share - WARM_UP) / (1 - WARM_UP)
    return highest * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2)


class Trainer:
    """Steps of AdamW."""

    def __init__(
        self, weights: Mapping[str, Tensor], loss: Callable[[int], Tensor], steps: int, highest: float
    ) -> None:
        """`highest`: learning rate. `steps`: after which it has come down."""
        self.step = 0
        self._weights = {name: weight.requires_grad_() for name, weight in weights.items()}
        self._loss = loss
        self._steps = steps
        self._highest = highest
        self._optimiser = torch.optim.AdamW(
            self._weights.values(), lr=highest, betas=BETAS, weight_decay=DECAY, foreach=False
        )

    def advance(self, share: float = 0.0) -> float:
        """One step; returns its loss before the step. `share`: of the time for training that is over."""
        share = max(share, (self.step + 0.5) / self._steps)
        for group in self._optimiser.param_groups:
            group["lr"] = rate(min(share, 1.0), self._highest)
        found = self._loss(self.step)
        self._optimiser.zero_grad(set_to_none=True)
        found.backward()
        torch.nn.utils.clip_grad_norm_(self._weights.values(), CLIP)
        self._optimiser.step()
        self.step += 1
        return float(found.detach())

    def state(self) -> dict[str, Tensor]:
        """Weights, AdamW's averages and the number of steps."""
        found = {f"{name}.weight": weight for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            found |= {f"{name}.{part}": value for part, value in self._optimiser.state[weight].items()}
        return found | {"step": torch.tensor(self.step)}

    def resume(self, state: Parts) -> None:
        """Goes on from what `state` returned. Raises KeyError, RuntimeError for another training's."""
        for name, weight in self._weights.items():
            weight.data.copy_(state[f"{name}.weight"])
            self._optimiser.state[weight] = {
                part: state[f"{name}.{part}"].to(weight.device if part != "step" else "cpu")
                for part in ("step", "exp_avg", "exp_avg_sq")
            }
        self.step = int(state["step"])


def fit(trainer: Trainer, folder: Folder, kind: str, steps: int, until: float, say: Say) -> float:
    """Trains from the checkpoint to the last step, or until this time, and keeps the last step; its smoothed loss.

    Raises KeyboardInterrupt, after a checkpoint, if the process was asked to end. Raises ModelError.
    """
    if (kept := folder.checkpoint(kind)) is not None:
        try:
            trainer.resume(kept)
        except (KeyError, RuntimeError) as error:
            raise ModelError(f"{folder.path}/{kind}.checkpoint is of another training; delete it.") from error
        say(f"goes on after step {trainer.step}")
    began = time.monotonic()
    first = trainer.step
    smooth = math.nan
    lines = 0.0
    now = kept_at = began
    with verbs.asked_to_end() as asked:
        while trainer.step < steps and now < until and not asked:
            found = trainer.advance((now - began) / (until - began))
            if not math.isfinite(found):
                raise ModelError(f"The loss of step {trainer.step} is no number; use a lower --rate in another folder.")
            smooth = found if math.isnan(smooth) else smooth + (found - smooth) * 0.05
            now = time.monotonic()
            if now - kept_at > KEEP_S:
                folder.save(kind, trainer.state())
                kept_at = now
            if now >= lines or trainer.step == steps:
                ahead = left(now - began, trainer.step - first, steps - trainer.step)
                say(f"step {trainer.step} of {steps}, loss {found:.3f}, {ahead}")
                lines = now + 10
        if trainer.step != first:
            folder.save(kind, trainer.state())
    if asked:
        say(f"stopped after step {trainer.step}; the same command goes on")
        raise KeyboardInterrupt

    return smooth


def left(seconds: float, done: int, ahead: int) -> str:
    """The pace so far and the time that the rest takes at it."""
    each = seconds / max(done, 1)
    return f"{each:.2f} s each, {each * ahead / 60:.0f} min left"
