"""Which worker drafts for a request: the one of which an accepted draft token is expected soonest, load considered, by
what workers brought lately. That is counted in requests and rounds, so without a clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cloud_gateway.core.policies.policy import Points, at
from edgespec.core.pairing.groups import DEFAULT_GROUPS
from edgespec.core.protocol.worth import NOTHING, WorkerFigures

START = 0.5
"""Worth of a worker of which nothing is known: that of one accepted candidate in each round."""
WEIGHT = 0.4
FULL_ROUNDS = 24
"""How far a request of FULL_ROUNDS rounds or more moves its key's mean; a shorter one moves it less."""
MIN_WORTH = 0.01
"""Below it a worker is no worse."""
EXPLORED = 10
"""Of so many requests one goes to a worker that was passed over, so that one that recovered is found again."""
MAX_KEYS = 64
"""API keys of one worker that have a mean."""


@dataclass(slots=True)
class Record:
    """One worker's totals since the gateway started, and its means."""

    requests: int = 0
    frames: int = 0
    accepted: int = 0
    figures: WorkerFigures = NOTHING
    """The figures that the worker is sent."""
    useless: int = 0
    """Requests in a row for which nothing of it was accepted."""
    tried: int = 0
    """Number of the latest request that it was given."""
    means: dict[str, float] = field(default_factory=dict)
    """By API key, the latest one last."""

    @property
    def worth(self) -> float:
        """Mean over keys of the share of tokens that needed no pass."""
        if self.means:
            return max(sum(self.means.values()) / len(self.means), MIN_WORTH)
        return START

    @property
    def why(self) -> str:
        """The worth in words."""
        if not self.means:
            return "nothing known yet"
        if self.useless:
            return f"nothing accepted in its last {self.useless} request{'s' * (self.useless > 1)}"
        return f"saved {self.worth:.0%} of the passes lately"


class Merit:
    """Ranks workers by the share of tokens that needed no pass.

    In a request with `rounds` passes of which a worker's accepted candidates saved `accepted` others, the share is
    accepted / (rounds + accepted). The estimate is an exponentially weighted mean over the requests of each API key,
    which begins at START, and then the mean over keys: so no key's prompts decide alone. Three silent requests bring a
    worker from 0.5 to 0.11, and the router takes it for five times as far away.
    """

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        """By the name in the operator's list, so that only paired workers have one and a new key of theirs keeps it."""
        self._requests = 0

    def of(self, worker: str) -> Record:
        return self._records.get(worker) or Record()

    def explores(self) -> bool:
        """Counts a request that is to be given; whether it goes to a worker that was passed over."""
        self._requests += 1
        return self._requests % EXPLORED == 0

    def given(self, worker: str) -> None:
        """It drafts for one request more."""
        record = self._records.setdefault(worker, Record())
        record.requests += 1
        record.tried = self._requests

    def ended(
        self,
        worker: str,
        key: str,
        rounds: int,
        frames: int,
        accepted: int,
        figures: WorkerFigures = NOTHING,
    ) -> None:
        """It drafts no longer for a request of this API key, which had so many `rounds` meanwhile.

        `figures`: those of this request alone.
        """
        record = self._records.setdefault(worker, Record())
        record.figures = record.figures + figures
        record.frames = record.frames + frames
        record.accepted = record.accepted + accepted
        if not rounds:
            return

        record.useless = 0 if accepted else record.useless + 1
        mean = record.means.pop(key, START)
        weight = WEIGHT * min(1.0, rounds / FULL_ROUNDS)
        record.means[key] = mean + weight * (accepted / (rounds + accepted) - mean)
        if len(record.means) > MAX_KEYS:
            del record.means[next(iter(record.means))]


@dataclass(slots=True, eq=False)
class LinkedWorker:
    """A linked worker as the engine sees it. The link layer writes each figure as it changes, on the event loop; each
    stands for itself, so that other threads may read them at any time."""

    id: str
    rtt_s: float
    rtt_high_s: float
    step_s: float
    """Td, from the spacing of its frames."""
    paused: bool
    name: str = ""
    groups: frozenset[str] = frozenset(DEFAULT_GROUPS)
    draft_points: Points = ()
    """Leaves and seconds of a draft step as the worker reports it: a lie costs time, never a token."""
    requests: int = 0
    """That it takes at once; 0: it does not say."""

    @property
    def label(self) -> str:
        """By which usage, audit log and what is learnt of it name it."""
        return self.name or self.id

    def pass_s(self, requests: int) -> float:
        """Seconds of a pass of its model with a leaf of each of so many requests: by its curve, else in turns."""
        if self.draft_points:
            return at(self.draft_points, requests)
        return requests * self.step_s

    def takes(self, load: int) -> bool:
        """Whether it takes a request beside so many."""
        return not self.requests or load < self.requests


def cost_s(one: LinkedWorker, load: int, merit: Merit | None) -> float:
    """Expected wait for an accepted draft token: a round trip and a pass with the other requests, the wait for a
    corrected draft, over its worth.

    So a worker whose passes take no longer for more requests is filled before slower ones get any, and those whose
    passes do are filled evenly. Without `merit` all are worth the same.
    """
    return (one.rtt_s + one.pass_s(load + 1)) / (merit.of(one.label).worth if merit else 1.0)


def choose(
    workers: Iterable[LinkedWorker],
    load: Mapping[str, int],
    groups: frozenset[str],
    merit: Merit,
    *,
    exclude: Collection[str] = (),
    explore: bool = False,
) -> str | None:
    """The worker with the least `cost_s`; None when none is free. `load`: requests that each drafts for now, by its id.

    Only workers of one of `groups` are asked: they read the prompt. `explore`: of the workers that are nearer
    than that one and passed over for their worth, the one that has waited longest.
    """
    free = [
        one for one in workers
        if one.groups & groups and not one.paused and one.id not in exclude and one.takes(load.get(one.id, 0))
    ]  # fmt: skip

    def wait_s(one: LinkedWorker, merit: Merit | None = None) -> float:
        return cost_s(one, load.get(one.id, 0), merit)

    best = min(free, key=lambda one: (wait_s(one, merit), one.id), default=None)
    if explore and best is not None:
        nearer = [one for one in free if wait_s(one) < wait_s(best)]
        best = min(nearer, key=lambda one: (merit.of(one.label).tried, one.id), default=best)
    if best:
        return best.id
    return None
