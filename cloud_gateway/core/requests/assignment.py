"""Giving a request to workers: who has it since when, and the messages that tell each the prefix and its share.

While a request waits for a slot, workers write answers to its prompt (QueueSpec): `RemoteAnswer` is one, and `Askings`
which to ask for. On the wire an answer is a request of its own. What the worker drafts is merged and checked as
candidates are. Then the most probable path is committed, so that the worker goes on after it. No pass of the target
chose these tokens, so the commits state none, and the worker learns nothing from them (docs/protocol.md).

Each answer is asked for once, and again where its worker was lost to it: it left, was needed elsewhere, declined, broke
the protocol or was silent. A worker that was lost to a request is not asked again for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from cloud_gateway.core.policies.policy import Outcome
from cloud_gateway.core.requests.events import Assignment, Released, Send, WorkerChange, WorkerChanged, WorkerWanted
from cloud_gateway.core.requests.rounds import RoundTimes
from cloud_gateway.core.sources.interface import MAX_ANSWERS
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.protocol.digests import Prefix
from edgespec.core.protocol.messages import MAX_DEPTH, MAX_TOKENS_PER_FRAME, Close, Commit, Open, Sampling, Share, Tree

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
        return [Send(assignment.worker, close), Released(assignment, why), *self._shares()]

    def commit(self, prefix: Prefix, tokens: list[int], times: RoundTimes, outcome: Outcome) -> Sequence[Send]:
        """Sends all workers what the target chose (step 5 of WANSpec's figure 6)."""
        start = len(prefix) - len(tokens)
        depth = min(outcome.depth, MAX_DEPTH)
        messages: list[Send] = []
        for assignment in self.given.values():
            body = Commit(self.request, assignment.epoch, start, tokens, prefix.digest, *times, depth)
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


EPOCH = 1
"""Each asking is a request of its own."""
NODES_PER_TOKEN = 64
"""Most candidates of its worker for each token of the longest answer. A best-first tree takes about thirty. With more
the answer ends, so that the memory for their ids is bounded."""


class RemoteAnswer:
    """Its tokens so far, and the messages that lead its worker."""

    def __init__(self, number: int, prompt: Sequence[int], limit: int, stops: Set[int]) -> None:
        """`number`: of the request on the wire; `limit`: most tokens; `stops`: tokens that end it."""
        self.number = number
        self._limit = limit
        self._stops = stops
        self._tree = CandidateTree(prompt)
        self._prompt_len = len(prompt)
        self._nodes = 0

    @property
    def tokens(self) -> Sequence[int]:
        """As far as it is committed."""
        return self._tree.prefix.tokens[self._prompt_len :]

    @property
    def done(self) -> bool:
        """Whether it is as long as it gets."""
        stopped = self._room < self._limit and self._tree.root.token in self._stops
        return stopped or not self._room or self._nodes >= NODES_PER_TOKEN * self._limit

    @property
    def _room(self) -> int:
        """Tokens that it may still get."""
        return self._limit + self._prompt_len - len(self._tree.prefix)

    def open(self, sampling: Sampling, scope: bytes) -> Iterator[Open | Commit]:
        """What the worker is sent first; `scope`: of its prefix cache."""
        return opening(self.number, EPOCH, self._tree.prefix, sampling, scope)

    def merge(self, frame: Tree, worker: str) -> Merged:
        """Takes in a frame; one of another epoch is stale. Raises RemoteProtocolError as `CandidateTree.merge` does."""
        if frame.epoch != EPOCH:
            return Merged(stale=len(frame.tokens))
        self._nodes += len(frame.tokens)
        return self._tree.merge(EPOCH, frame, worker)

    def advance(self) -> Commit | None:
        """Commits the most probable path of what has arrived; None where nothing new is on it."""
        path = [] if self.done else self._tree.best_leaf().path(self._tree.root)[: self._room]
        end = next((at for at, token in enumerate(path, 1) if token in self._stops), len(path))
        if not end:
            return None

        start = len(self._tree.prefix)
        piece = list(path[:end])
        self._tree.advance(piece)
        return Commit(self.number, EPOCH, start, piece, self._tree.prefix.digest)

    def close(self, why: str) -> Close:
        """Sent when it is not wanted any more."""
        return Close(self.number, EPOCH, why)


MAX_AGAIN = 3
"""Askings of one request beyond one for each answer: with more, workers that write nothing would cost the others."""
MIN_PATIENCE_S = 2.0
STEPS = 16
"""Draft steps without a further token of the answer: a worker that drafts for others too may be that late."""
READ_A_STEP = 2
"""Tokens of a prompt that a worker reads in the time of a step, at least: a batch computes several at once."""


def patience(rtt_s: float, step_s: float, unread: int) -> float:
    """Seconds in which a worker has to bring an answer further; `unread`: tokens of the prompt to be read before."""
    return MIN_PATIENCE_S + rtt_s + step_s * (STEPS + unread / READ_A_STEP)


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
