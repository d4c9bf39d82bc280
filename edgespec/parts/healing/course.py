"""The training: the target writes, the student learns from each text three times, and the target writes on.

    while there is time
        if each token was learnt from REUSE times: the target writes a round of completions
        else: a step of AdamW over the texts that were learnt from least

What a step computes depends on the texts, the parameters and the number of the step alone, so a run that was stopped
goes on with the same bits. Only the learning rate depends on the clock, if the budget is in minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from edgespec.core.errors import ModelError
from edgespec.parts.healing.state import Progress, Saved
from edgespec.parts.healing.student import Student
from edgespec.parts.healing.target import Passage

BATCH = 4
"""Completions of a step."""
REUSE = 3.0
"""How often each token is learnt from before the target writes more. On one core, writing a token takes longer than
learning from it once."""
WARM_UP = 0.03
LAST_RATE = 0.1
"""Share of the budget over which the learning rate rises, and its last value, as a share of the highest."""
BETAS = (0.9, 0.95)
CLIP = 1.0


def rate(share: float, highest: float) -> float:
    """The learning rate after a share of the budget: a linear rise, then half a cosine down to LAST_RATE of it."""
    if share < WARM_UP:
        return highest * (share + 0.1 * WARM_UP) / (1.1 * WARM_UP)

    done = (
        min(
            share,
            1.0,
        )
        - WARM_UP
    ) / (1 - WARM_UP)
    return highest * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2)


class Course:
    """A student with the texts that it learns from."""

    def __init__(
        self,
        student: Student,
        saved: Saved,
        highest_rate: float,
    ) -> None:
        """Raises ModelError if `saved` is of another student."""
        self.student = student
        self.passages = list(saved.passages)
        self.held = list(saved.held)
        self.counts = saved.counts
        self.uses = list(saved.uses)
        self._rate = highest_rate
        self._parameters = student.parameters
        self._optimiser = torch.optim.AdamW(
            self._parameters.values(), lr=highest_rate, betas=BETAS, weight_decay=0.0, foreach=False
        )
        if saved.tensors:
            self._restore(saved.tensors)

    @property
    def written(self) -> int:
        """Tokens of the completions that there are to learn from."""
        return sum(passage.written for passage in self.passages)

    @property
    def needs_text(self) -> bool:
        return self.counts.seen >= REUSE * self.written

    def add(
        self,
        passages: Sequence[Passage],
        prompts_used: int,
    ) -> None:
        """More completions; `prompts_used` prompts were taken for them."""
        self.passages += passages
        self.uses += [0] * len(passages)
        next_prompt = self.counts.next_prompt + prompts_used
        self.counts = msgspec.structs.replace(
            self.counts,
            next_prompt=next_prompt,
        )

    def spent(self, seconds: float) -> None:
        """Progress time of the budget."""
        self.counts = msgspec.structs.replace(
            self.counts,
            seconds=self.counts.seconds + seconds,
        )

    def began_at(self, match_rate: float) -> None:
        """The match rate before the first step."""
        self.counts = msgspec.structs.replace(
            self.counts,
            before=match_rate,
        )

    def step(self, share: float) -> float:
        """Learns from BATCH completions; returns the loss before. `share`: of the budget that is spent.

        Raises ModelError for a loss that is no number.
        """
        for group in self._optimiser.param_groups:
            group["lr"] = rate(share, self._rate)

        chosen = self._chosen()
        loss = divergence(self.student, chosen)
        if not math.isfinite(float(loss.detach())):
            raise ModelError(f"The loss of step {self.counts.step} is no number; use a lower --rate.")

        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(
            self._parameters.values(),
            CLIP,
        )
        self._optimiser.step()
        self.student.refresh()

        seen = self.counts.seen + sum(passage.written for passage in chosen)
        self.counts = msgspec.structs.replace(
            self.counts,
            step=self.counts.step + 1,
            seen=seen,
        )
        return float(loss.detach())

    def _chosen(self) -> list[Passage]:
        """The passages that were learnt from least; of equals, in an order drawn from the step's number."""
        drawn = np.random.default_rng(self.counts.step).permutation(len(self.passages))
        order = sorted(
            drawn.tolist(),
            key=lambda number: self.uses[number],
        )
        for number in order[:BATCH]:
            self.uses[number] += 1
        return [self.passages[number] for number in order[:BATCH]]

    def saved(self) -> Saved:
        """Everything from which another run goes on."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            tensors[f"parameter.{name}"] = parameter
            for average, value in self._optimiser.state[parameter].items():
                tensors[f"{average}.{name}"] = torch.as_tensor(value)
        return Saved(
            self.counts,
            list(self.uses),
            self.passages,
            self.held,
            tensors,
        )

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        try:
            for name, parameter in self._parameters.items():
                parameter.data.copy_(tensors[f"parameter.{name}"])
                if self.counts.step:
                    averages = ("step", "exp_avg", "exp_avg_sq")
                    self._optimiser.state[parameter] = {kind: tensors[f"{kind}.{name}"].clone() for kind in averages}
        except (KeyError, RuntimeError) as error:
            raise ModelError(f"The state is of another draft ({error}); remove it, and leave --resume out.") from error
        self.student.refresh()


def divergence(student: Student, passages: Sequence[Passage]) -> Tensor:
    """The mean Kullback-Leibler divergence of the student from the target, in nats a token of the completions.

    The tokens that the target did not rank count as one.
    """
    logits = _at_completions(student, passages)
    ranked = torch.from_numpy(np.concatenate([passage.ranked for passage in passages])).long()
    targets = torch.from_numpy(np.concatenate([passage.log_probs for passage in passages]))

    log_probs = F.log_softmax(
        logits,
        -1,
    ).gather(
        -1,
        ranked,
    )
    probabilities = targets.exp()
    inside = (probabilities * (targets - log_probs)).sum(-1)

    rest = (1 - probabilities.sum(-1)).clamp(min=1e-6)
    rest_here = (1 - log_probs.exp().sum(-1)).clamp(min=1e-6)
    outside = rest * (rest.log() - rest_here.log())
    return (inside + outside).mean()


@torch.no_grad()
def match_rate(student: Student, passages: Sequence[Passage]) -> float:
    """The share of the target's tokens that are the student's most probable one."""
    right = 0
    total = 0
    for first in range(
        0,
        len(passages),
        BATCH,
    ):
        batch = passages[first : first + BATCH]
        chosen = _at_completions(student, batch).argmax(-1)
        wanted = torch.from_numpy(np.concatenate([passage.ranked[:, 0] for passage in batch]))
        right += int((chosen == wanted).sum())
        total += len(wanted)
    return right / max(total, 1)


def _at_completions(student: Student, passages: Sequence[Passage]) -> Tensor:
    """[tokens of the completions, vocabulary]: the student's logits at the places of these tokens."""
    sequences: list[Tensor] = []
    wanted: list[Tensor] = []
    for passage in passages:
        sequence = torch.from_numpy(passage.tokens[:-1].astype(np.int64))
        places = torch.zeros(
            len(sequence),
            dtype=torch.bool,
        )
        places[-passage.written :] = True
        sequences.append(sequence)
        wanted.append(places)
    return student.logits(sequences, torch.cat(wanted))


def fresh() -> Saved:
    """The state before anything was written or learnt."""
    return Saved(
        Progress(),
        [],
        [],
        [],
    )
