"""Prompts of the target and of the local draft, read in chunks between the rounds of other requests.

Beside completions that run, at most one chunk is read between two rounds, of at most `prefill_ms` by the speed of the
chunks before; and the time after a chunk until the next is at least LEFT times what it took, so that the others keep
half of their speed. A prompt that came before any of them had a token (requests of one moment, whose prompts are read
one after the other) leaves them less: its chunks are BURST times as long and need only a round between them. Prompts
take turns, those first. Where no completion runs, chunks follow each other and have `prefill_chunk` tokens whatever
they take: small ones cost up to twice as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cloud_gateway.core.requests.events import Read, Status
from cloud_gateway.engine.exchange import Active
from cloud_gateway.engine.requests import Requests
from edgespec.shared.contained import Contained

PREFILL_MS = 250.0
"""What a chunk of a prompt may take beside completions that run, by the speed of those before: they wait at most so
long for it."""
FIRST_TOKENS = 32
"""Tokens of the target's first chunk, whose speed is not known yet."""
MIN_TOKENS = 8
"""Tokens of a chunk, however slow the model is: fewer cost as much, since a pass reads all weights."""
BURST = 4.0
"""Chunks in one, for a prompt that came before the running completions' first tokens: four of 250 ms are a pause that
readers of a stream that has just begun accept."""
LEFT = 1.25
"""Minimum gap after a chunk, as a multiple of its duration. With 1.0, streams kept 0.46 to 0.51 of their speed, since
rounds after a chunk are slower than others (docs/results/llama-server.md)."""
LATEST = 0.5
"""Weight of the latest chunk in the expected time of a token, which grows with the length of the prompt."""


@dataclass(slots=True)
class Pace:
    """How many tokens of a prompt are read in a chunk: at most `max_tokens`, in about `limit_s`."""

    max_tokens: int
    limit_s: float
    token_s: float | None = None
    """Expected seconds of a token for the target; None until a chunk was read."""

    def tokens(self, limits: float = 1.0) -> int:
        """Of the target's next chunk, which may take so many times `limit_s`."""
        if self.token_s is None:
            return min(FIRST_TOKENS, self.max_tokens)
        return self.fitting(self.token_s, limits)

    def fitting(self, token_s: float, limits: float = 1.0) -> int:
        """Of a chunk of a model that reads a token in so many seconds."""
        if token_s * self.max_tokens <= limits * self.limit_s:
            return self.max_tokens
        return min(max(int(limits * self.limit_s / token_s), MIN_TOKENS), self.max_tokens)

    def took(self, tokens: int, seconds: float) -> None:
        """Notes a chunk of the target. The short end of a prompt says nothing: it takes as long as some tokens more."""
        if tokens >= max(self.tokens() // 2, MIN_TOKENS):
            before = seconds / tokens if self.token_s is None else self.token_s
            self.token_s = before + LATEST * (seconds / tokens - before)


@dataclass(slots=True)
class Prefill:
    """Chooses when a chunk is read, of which prompt and how long, and reads it. Lives on the engine's thread."""

    requests: Requests
    pace: Pace
    next_at: float = 0.0
    """Beside running completions, no chunk is read before."""
    spent_s: float = 0.0
    """Seconds that reading took so far."""
    _round_since: bool = field(default=True, init=False)
    _turns: list[int] = field(default_factory=list, init=False)
    """Requests with a prompt to read, in the order of their turns. The one that had the latest chunk is last, behind
    those that came meanwhile; if all new ones were first, short prompts that keep coming would keep a long one from
    being read."""
    _last: int = field(default=0, init=False)
    """The request that had the latest chunk."""

    def round_ended(self) -> None:
        """Running completions were verified."""
        self._round_since = True

    def waiting(self) -> list[Active]:
        """Requests with a prompt to read, for the target or for the local draft, in the order of their turns."""
        reading = {active.id: active for active in self.requests.active.values() if self._reads(active)}
        waited = [number for number in self._turns if number in reading and number != self._last]
        came = sorted(reading.keys() - set(waited) - {self._last})
        self._turns = waited + came
        if self._last in reading:
            self._turns.append(self._last)

        # Prompts that came before the running completions' first tokens are read first.
        in_turn = [reading[number] for number in self._turns]
        if len(in_turn) < 2:
            return in_turn

        since = self._running_since()
        return sorted(in_turn, key=lambda active: _limits(active, since) == 1)

    def due(self, active: Active, *, idle: bool) -> bool:
        """Whether a chunk of its prompt may be read now; `idle`: running completions have nothing to compute now."""
        limits = _limits(active, self._running_since())
        may = limits > 1 or self.requests.clock() >= self.next_at
        return math.isinf(limits) or (may and (idle or self._round_since))

    def read(self, active: Active) -> None:
        """Reads one chunk of its prompt."""
        local = self.requests.local
        clock = self.requests.clock
        began = clock()
        limits = _limits(active, self._running_since())

        if self._reads_for_target(active):
            self._target(active, limits)
        elif local.model is not None:
            local.prefill(active, self.pace.fitting(local.model.token_s, min(limits, BURST)))

        now = clock()
        self._last = active.id
        self._round_since = False
        self.next_at = now + LEFT * (now - began)
        self.spent_s += now - began

    def _running_since(self) -> float | None:
        """When the first of the running completions had a token; None if none runs."""
        running = [active.generation for active in self.requests.active.values() if not self._reads(active)]
        if not running:
            return None
        first_tokens = [generation.first_token_at for generation in running if generation.first_token_at is not None]
        return min(first_tokens, default=math.inf)

    def _reads(self, active: Active) -> bool:
        in_slots = len(self.requests.active)
        return self._reads_for_target(active) or self.requests.local.prompt_pending(active, in_slots)

    def _reads_for_target(self, active: Active) -> bool:
        return active.generation.status is Status.PREFILL

    def _target(self, active: Active, limits: float) -> None:
        """Reads a chunk with the target. The last token is left for the first pass."""
        generation = active.generation
        requests = self.requests
        size = self.pace.max_tokens
        if not math.isinf(limits):
            size = self.pace.tokens(limits)
        end = min(generation.prefilled + size, len(generation.reading) - 1)

        began = requests.clock()
        with Contained(requests.pass_failed, [active]) as contained:
            requests.target.prefill(active.slot, generation.reading[generation.prefilled : end])
        if contained.error is not None:
            return

        spent = requests.clock() - began
        tokens = end - generation.prefilled

        with requests.isolated(active, "showing the prompt to its sources"):
            requests.local.show_prompt(active)
        requests.stats.target_s += spent
        self.pace.took(tokens, spent)
        requests.step(active, Read(tokens, spent))


def _limits(active: Active, since: float | None) -> float:
    """How many times `prefill_ms` a chunk of its prompt may take; inf for no limit. `since`: when the first of the
    running completions had a token; None if none runs."""
    if since is None:
        return math.inf
    if active.room.since <= since:
        return BURST
    return 1.0
