"""What workers brought lately, by which the router ranks them. Counted in requests and rounds, so without a clock."""

from __future__ import annotations

from dataclasses import dataclass, field

START = 0.5
"""Worth of a worker of which nothing is known: that of one accepted candidate in each round."""
WEIGHT, FULL_ROUNDS = 0.4, 24
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
    useless: int = 0
    """Requests in a row for which nothing of it was accepted."""
    tried: int = 0
    """Number of the latest request that it was given."""
    means: dict[str, float] = field(default_factory=dict)
    """By API key, the latest one last."""

    @property
    def worth(self) -> float:
        """Mean over keys of the share of tokens that needed no pass."""
        return max(sum(self.means.values()) / len(self.means), MIN_WORTH) if self.means else START

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

    def ended(self, worker: str, key: str, rounds: int, frames: int, accepted: int) -> None:
        """It drafts no longer for a request of this API key, which had so many `rounds` meanwhile."""
        record = self._records.setdefault(worker, Record())
        record.frames, record.accepted = record.frames + frames, record.accepted + accepted
        if not rounds:
            return
        record.useless = 0 if accepted else record.useless + 1
        mean, weight = record.means.pop(key, START), WEIGHT * min(1.0, rounds / FULL_ROUNDS)
        record.means[key] = mean + weight * (accepted / (rounds + accepted) - mean)
        if len(record.means) > MAX_KEYS:
            del record.means[next(iter(record.means))]
