"""Giving a request to workers: who has it since when, and the messages that tell each the prefix and its share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cloud_gateway.core.policies.policy import Outcome
from cloud_gateway.core.requests.events import (
    Assignment,
    Released,
    Send,
    WorkerChange,
    WorkerChanged,
    WorkerWanted,
)
from cloud_gateway.core.requests.pace import NO_TIME, Span
from cloud_gateway.core.requests.rounds import RoundTimes
from edgespec.core.protocol.digests import Prefix
from edgespec.core.protocol.messages import (
    MAX_DEPTH,
    MAX_TOKENS_PER_FRAME,
    Close,
    Commit,
    Open,
    Sampling,
    Share,
)

RELEASED: Mapping[WorkerChange, str] = {
    "gone": "moved", "declined": "declined", "useless": "nothing accepted", "needed": "needed elsewhere",
}  # fmt: skip
"""Why a worker was released, as the worker and the audit log have it."""
OPEN_TOKENS = 4096
"""Token ids sent in the `Open` itself; the rest of a long prompt follows in `Commit`s."""
PATIENCE = 24
"""Rounds without an accepted candidate after which another worker is tried. One whose candidates save every fifth pass
is that unlucky once in 200 times, and then costs another worker the reading of the prompt."""
READ = 16
"""Tokens of a prompt that a worker reads in one round at least: 320 a second beside passes of 50 ms."""


@dataclass(slots=True)
class Assignments:
    """The workers that draft for one request, the first one the longest. Their shares of the branches follow from this
    order alone (edgespec/core/drafting/tree.py), so none has to be sent what another one drafts."""

    request: int
    audited: bool
    allowed: bool = False
    """Whether workers may draft for it."""
    sampling: Sampling = field(default_factory=Sampling)
    """The sampling parameters as sent to workers: the seed removed unless it is shared."""
    given: dict[str, Assignment] = field(default_factory=dict)
    """By worker."""
    excluded: set[str] = field(default_factory=set)
    """Workers that declined, broke the protocol or brought nothing for this request."""
    span_alone: Span = NO_TIME
    """The rounds in which no worker drafted."""
    _epoch: int = 0

    @property
    def first(self) -> Assignment | None:
        """The worker that the policy sees; None while nobody drafts."""
        return next(iter(self.given.values()), None)

    def useless(self, prompt_len: int) -> Iterator[WorkerWanted]:
        """Asks for another worker in place of each that has brought nothing for PATIENCE rounds, again and again;
        one that still reads the prompt has a round more for each READ tokens."""
        for assignment in self.given.values():
            patience = PATIENCE
            if not assignment.ready:
                patience += prompt_len // READ
            if assignment.idle >= patience and (assignment.idle - patience) % PATIENCE == 0:
                yield WorkerWanted(assignment.worker)

    def add(self, event: WorkerChanged, prefix: Prefix) -> list[Send]:
        """Adds a worker; the messages with the prefix and the new shares."""
        self._epoch += 1
        assignment = Assignment(event.worker, self._epoch, event.name or event.worker, self.audited)
        self.given[event.worker] = assignment
        messages = opening(self.request, assignment.epoch, prefix, self.sampling, event.scope)
        return [*(Send(event.worker, body) for body in messages), *self._shares()]

    def remove(self, assignment: Assignment, why: str) -> list[Send | Released]:
        """Removes a worker: the others draft its branches too, from now on."""
        del self.given[assignment.worker]
        close = Close(self.request, assignment.epoch, why)
        return [
            Send(assignment.worker, close),
            Released(assignment, why),
            *self._shares(),
        ]

    def took(self, span: Span) -> None:
        """Adds a round to those of each worker, or to those without one."""
        if not self.given:
            self.span_alone = self.span_alone.plus(span)
        for assignment in self.given.values():
            assignment.span = assignment.span.plus(span)

    def commit(self, prefix: Prefix, tokens: list[int], times: RoundTimes, outcome: Outcome) -> Sequence[Send]:
        """Sends all workers what the target chose (step 5 of WANSpec's figure 6)."""
        start = len(prefix) - len(tokens)
        depth = min(outcome.depth, MAX_DEPTH)
        messages: list[Send] = []
        for assignment in self.given.values():
            body = Commit(
                self.request,
                assignment.epoch,
                start,
                tokens,
                prefix.digest,
                *times,
                depth,
            )
            messages.append(Send(assignment.worker, body, diverged=not outcome.at_leaf))

        return messages

    def _shares(self) -> Iterator[Send]:
        """A message for each worker whose share has changed."""
        for index, assignment in enumerate(self.given.values()):
            place = (index, len(self.given))
            if assignment.share != place:
                assignment.share = place
                yield Send(assignment.worker, Share(self.request, assignment.epoch, *place))


def opening(request: int, epoch: int, prefix: Prefix, sampling: Sampling, scope: bytes) -> Iterator[Open | Commit]:
    """The messages in their order; `scope` is that of the worker's prefix cache."""
    length = len(prefix)
    yield Open(request, epoch, length, prefix.tokens[:OPEN_TOKENS], sampling, scope)
    for start in range(OPEN_TOKENS, length, MAX_TOKENS_PER_FRAME):
        end = min(start + MAX_TOKENS_PER_FRAME, length)
        yield Commit(request, epoch, start, prefix.tokens[start:end], prefix.digest_at(end))
