"""What the engine has done since it started."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.requests.accounting import FrameLedger
from cloud_gateway.core.requests.request import Usage


@dataclass(slots=True)
class Stats:
    """Totals since the start, for metrics and benchmarks. Seconds; written by the engine's thread only."""

    rounds: int = 0
    tokens: int = 0
    requests: int = 0
    target_s: float = 0.0
    draft_s: float = 0.0
    waited_s: float = 0.0
    host_s: float = 0.0
    """Time of busy turns of the loop outside the models."""
    local_passes: int = 0
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    sources: dict[tuple[str, str], int] = field(default_factory=dict)
    """Candidates of sources without a draft model: (source, `proposed`, `verified` or `accepted`) -> count."""
    source_s: dict[str, float] = field(default_factory=dict)
    """Seconds that asking each of them took."""
    workers: dict[str, int] = field(default_factory=dict)
    """Draft tokens of all workers, the counts of `Usage.by_worker`."""
    frames: FrameLedger = field(default_factory=FrameLedger)
    """Of all requests, and of those that are over."""
    fallbacks: int = 0
    guard: dict[tuple[str, str], int] = field(default_factory=dict)
    """Changes of the guard's mode: (mode, reason) -> count."""
    faults: int = 0
    """Exceptions that stayed within one request."""
    failed_passes: int = 0
    """Passes of the target that failed."""
    retries: int = 0
    """Requests put into a fresh slot after such a pass."""

    preemptions: int = 0
    """Times that a request's KV cache went to another one."""

    def add(self, usage: Usage) -> None:
        """Takes in a completion that has ended."""
        for mine, total in ((usage.drafted, self.drafted), (usage.accepted, self.accepted)):
            for source, count in mine.items():
                total[source] = total.get(source, 0) + count
        for source, figures in usage.sources.items():
            for what in ("proposed", "verified", "accepted"):
                self.sources[source, what] = self.sources.get((source, what), 0) + figures[what]
            self.source_s[source] = self.source_s.get(source, 0.0) + figures["seconds"]
        for counts in usage.by_worker.values():
            for what in counts.keys() - {"frames"}:
                self.workers[what] = self.workers.get(what, 0) + counts[what]
        self.fallbacks += usage.fallbacks
        for mode, reasons in usage.guard.items():
            for reason, count in reasons.items():
                self.guard[mode, reason] = self.guard.get((mode, reason), 0) + count
