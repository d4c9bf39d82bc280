"""Which answers are to be written for the requests that wait, and how each of them is sampled.

Every request gets its first answer before any gets a second one. Each answer is asked for once, and again if its worker
was lost to it: it left, was needed elsewhere, declined, broke the protocol or was silent. A worker that was lost to a
request is not asked again for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from cloud_gateway.engine.exchange import Active
from cloud_gateway.parts.queued_answers import MAX_ANSWERS
from cloud_gateway.parts.queued_answers.source import answers_of
from edgespec.core.protocol.messages import Sampling

ANSWER_TOKENS = 256
"""Of one answer: a later position agrees with the completion ever less."""
OTHER_TEMPERATURE = 0.7
"""Of the second answer and further ones, where the request's is lower: they have to differ from the first."""
MAX_AGAIN = 3
"""Askings of one request beyond one for each answer: with more, workers that write nothing would cost the others."""


@dataclass(slots=True)
class Askings:
    """The answers of one request that waits, counted from 0."""

    lost_by: set[str] = field(default_factory=set)
    """Workers that were lost to it."""
    _begun: int = 0
    _again: int = 0
    _lost: list[int] = field(default_factory=list)

    @property
    def next(self) -> int:
        """Number of the answer to ask for: a lost one first."""
        return min(self._lost, default=self._begun)

    def take(self) -> int:
        """The same; it counts as asked for from now on."""
        number = self.next
        if self._lost:
            self._lost.remove(number)
        else:
            self._begun += 1
        return number

    def lose(self, number: int, worker: str) -> None:
        """The worker does not end this answer."""
        self.lost_by.add(worker)
        if self._again < MAX_AGAIN:
            self._again += 1
            self._lost.append(number)

    def stop(self) -> None:
        """Nothing more is asked for."""
        self._begun = MAX_ANSWERS
        self._again = MAX_AGAIN
        self._lost.clear()


@dataclass(frozen=True, slots=True)
class AnswerJob:
    """One answer that is to be written."""

    active: Active
    askings: Askings
    """Of its request."""
    number: int
    """Among the answers of its request."""
    sampling: Sampling
    limit: int
    """Most tokens."""
    stops: Set[int]
    """Tokens that end it."""

    def done(self, tokens: Sequence[int]) -> None:
        """Gives the request's source what was written."""
        source = answers_of(self.active.generation)
        if source is not None:
            source.add(tokens)


class Jobs:
    """Hands out the answers that are to be written."""

    def __init__(self, answers: int, eos: Iterable[int]) -> None:
        """`answers`: of each request; `eos`: tokens that end a completion."""
        self._answers = answers
        self._eos = frozenset(eos)
        self._askings: dict[int, Askings] = {}
        """By the requests that wait."""

    def claim(self, waiting: Sequence[Active], may: Callable[[Active, Askings], bool]) -> AnswerJob | None:
        """The next answer for a request that fulfils the condition; it counts as asked for from then on."""
        candidates: list[tuple[Askings, Active]] = []
        for active in waiting:
            if active.ran or answers_of(active.generation) is None:
                continue
            askings = self._askings.setdefault(active.id, Askings())
            if askings.next < self._answers and may(active, askings):
                candidates.append((askings, active))
        if not candidates:
            return None

        askings, active = min(candidates, key=lambda pair: pair[0].next)
        number = askings.take()
        limit = min(ANSWER_TOKENS, active.request.max_tokens)
        stops = self._eos
        if active.request.ignore_eos:
            stops = frozenset()
        sampling = sampling_of(active.generation.assignments.sampling, number)
        return AnswerJob(active, askings, number, sampling, limit, stops)

    def forget(self, active: Active) -> None:
        """The request waits no more."""
        self._askings.pop(active.id, None)


def sampling_of(asked: Sampling, number: int) -> Sampling:
    """Of the answer of this number: the first one as the request is sampled, as far as its seed may be used."""
    if number == 0 and (asked.seed is not None or asked.temperature == 0):
        return asked
    return replace(asked, temperature=max(asked.temperature, OTHER_TEMPERATURE), seed=number)
