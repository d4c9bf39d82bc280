"""Reads prompts, for the target and for the local draft, in chunks between the rounds of other requests.

Which prompt is next, how much of it is read and when, `core/limits/prompts.py` decides.
"""

from __future__ import annotations

from cloud_gateway.core.limits.prompts import (
    BURST,
    Prompt,
    PromptTurns,
    ReadingPace,
    limits_of,
    running_since,
)
from cloud_gateway.core.requests.events import Read, Status
from cloud_gateway.engine.exchange import Active
from cloud_gateway.engine.requests import Requests
from edgespec.shared.contained import Contained

PREFILL_MS = 250.0
"""What a chunk of a prompt may take beside completions that run, by the speed of those before: they wait at most so
long for it."""


class Prefill:
    """Reads a chunk of the prompt whose turn it is, if it is due. Lives on the engine's thread."""

    def __init__(self, requests: Requests, pace: ReadingPace) -> None:
        self.pace = pace
        """Of reading with the target."""
        self.spent_s = 0.0
        """Seconds that reading took so far."""
        self._requests = requests
        self._local = requests.local
        self._turns = PromptTurns()

    def round_ended(self) -> None:
        """Running completions were verified."""
        self._turns.round_ended()

    def turn(self, *, idle: bool, wake: float) -> float | None:
        """Reads one chunk of a prompt if it is due; returns when to wake, or None after a chunk.

        `idle`: running completions have nothing to compute now; `wake`: when to wake if there were no prompts.
        """
        reading = {active.id: active for active in self._requests.active.values() if self._reads(active)}
        since = running_since(
            active.generation.first_token_at for active in self._requests.active.values() if active.id not in reading
        )

        prompts = [Prompt(active.id, active.room.since) for active in reading.values()]
        order = self._turns.order(prompts, since)
        if not order:
            return wake

        active = reading[order[0]]
        prompt = Prompt(active.id, active.room.since)
        now = self._requests.clock()
        if not self._turns.due(prompt, since, now, idle=idle):
            return min(wake, self._turns.next_at)

        self._read(active, prompt, limits_of(prompt, since))
        return None

    def _reads(self, active: Active) -> bool:
        """Whether target or local draft has to read of its prompt before its policy is asked."""
        in_slots = len(self._requests.active)
        return _target_reads(active) or self._local.prompt_pending(active, in_slots)

    def _read(self, active: Active, prompt: Prompt, limits: float) -> None:
        """Reads one chunk of its prompt, which may take so many times the limit."""
        began = self._requests.clock()
        model = self._local.model

        if _target_reads(active):
            self._read_for_target(active, self.pace.tokens(limits))
        elif model is not None:
            tokens = self.pace.fitting(model.token_s, min(limits, BURST))
            self._local.prefill(active, tokens)

        ended = self._requests.clock()
        self._turns.chunk_read(prompt, began, ended)
        self.spent_s += ended - began

    def _read_for_target(self, active: Active, size: int) -> None:
        """Has the target read so many tokens. The last token of a prompt is left for the first pass."""
        generation = active.generation
        requests = self._requests
        start = generation.prefilled
        end = min(start + size, len(generation.reading) - 1)

        began = requests.clock()
        with Contained(requests.pass_failed, [active]) as contained:
            requests.target.prefill(active.slot, generation.reading[start:end])
        if contained.error is not None:
            return

        spent_s = requests.clock() - began
        tokens = end - start

        with requests.isolated(active, "showing the prompt to its sources"):
            self._local.show_prompt(active)

        requests.stats.target_s += spent_s
        self.pace.took(tokens, spent_s)
        requests.step(active, Read(tokens, spent_s))


def _target_reads(active: Active) -> bool:
    return active.generation.status is Status.PREFILL
