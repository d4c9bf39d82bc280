"""Which prompt is read next, how much of it at once, and when: in chunks, between the rounds of completions.

Beside completions that run, at most one chunk is read between two rounds. It takes at most a limit of time, by the
speed of the chunks before. The time after a chunk until the next is at least LEFT times what it took, so that the
others keep half of their speed. A prompt that came before any of them had a token (requests of one moment, whose
prompts are read one after the other) leaves them less: its chunks are BURST times as long and need only a round between
them. Prompts take turns, those first. If no completion runs, chunks follow each other and have as many tokens as
allowed, whatever they take: small ones cost up to twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
NO_LIMIT = math.inf


@dataclass(slots=True)
class ReadingPace:
    """How many tokens of a prompt are read in a chunk: at most `max_tokens`, in about `limit_s`."""

    max_tokens: int
    limit_s: float
    token_s: float | None = None
    """Expected seconds of a token for the target; None until a chunk was read."""

    def tokens(self, limits: float = 1.0) -> int:
        """Of the target's next chunk, which may take so many times `limit_s`."""
        if limits == NO_LIMIT:
            return self.max_tokens
        if self.token_s is None:
            return min(FIRST_TOKENS, self.max_tokens)
        return self.fitting(self.token_s, limits)

    def fitting(self, token_s: float, limits: float = 1.0) -> int:
        """Of a chunk of a model that reads a token in so many seconds."""
        allowed_s = limits * self.limit_s
        if token_s * self.max_tokens <= allowed_s:
            return self.max_tokens

        fitting = int(allowed_s / token_s)
        return min(max(fitting, MIN_TOKENS), self.max_tokens)

    def took(self, tokens: int, seconds: float) -> None:
        """Notes a chunk of the target. The short end of a prompt says nothing: it takes as long as some tokens more."""
        if tokens < max(self.tokens() // 2, MIN_TOKENS):
            return

        latest_s = seconds / tokens
        if self.token_s is None:
            self.token_s = latest_s
        else:
            self.token_s += LATEST * (latest_s - self.token_s)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that has not been read to its end."""

    request: int
    came_at: float
    """When its request came, or was preempted after it had gained a token, in seconds."""


def running_since(first_tokens_at: Iterable[float | None]) -> float | None:
    """When the first of the running completions had a token, of which each has its time, or None before that.

    Infinite if none has had one; None if none runs.
    """
    times = [math.inf if at is None else at for at in first_tokens_at]
    return min(times, default=None)


def limits_of(prompt: Prompt, since: float | None) -> float:
    """How many times the limit a chunk of this prompt may take. `since`: as `running_since` returns it."""
    # 1. No completion waits for the chunk.
    if since is None:
        return NO_LIMIT

    # 2. The prompt came before those that run had a token.
    if prompt.came_at <= since:
        return BURST

    # 3. It came while others were running.
    return 1.0


class PromptTurns:
    """Decides which prompt is read next, and when."""

    def __init__(self) -> None:
        self.next_at = 0.0
        """Beside completions that came before, no chunk is read before this moment."""
        self._round_since = True
        """Whether running completions were verified since the latest chunk."""
        self._turns: list[int] = []
        """Requests in the order of their turns. The one that had the latest chunk is last, behind those that came
        meanwhile: if new ones were first, short prompts that keep coming would keep a long one from being read."""
        self._last = 0
        """The request that had the latest chunk."""

    def order(self, prompts: Sequence[Prompt], since: float | None) -> list[int]:
        """The requests of these prompts, the next one first."""
        by_request = {prompt.request: prompt for prompt in prompts}
        waited = [request for request in self._turns if request in by_request and request != self._last]
        came = sorted(by_request.keys() - set(waited) - {self._last})

        self._turns = waited + came
        if self._last in by_request:
            self._turns.append(self._last)

        # The sort keeps the order of turns among those that came before the running completions' first tokens.
        return sorted(
            self._turns,
            key=lambda request: limits_of(by_request[request], since) == 1.0,
        )

    def due(self, prompt: Prompt, since: float | None, now: float, *, idle: bool) -> bool:
        """Whether a chunk of it may be read now; `idle`: running completions have nothing to compute now."""
        limits = limits_of(prompt, since)
        if limits == NO_LIMIT:
            return True

        may_begin = limits == BURST or now >= self.next_at
        round_between = idle or self._round_since
        return may_begin and round_between

    def round_ended(self) -> None:
        """Running completions were verified."""
        self._round_since = True

    def chunk_read(self, prompt: Prompt, began: float, ended: float) -> None:
        """A chunk of it was read between these moments."""
        self._last = prompt.request
        self._round_since = False
        self.next_at = ended + LEFT * (ended - began)
