"""What the engine has done since it started."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.requests.accounting import FrameLedger
from cloud_gateway.core.requests.request import Usage, added


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
    ended: Usage = field(default_factory=Usage)
    """The sum over all completions that have ended."""
    frames: FrameLedger = field(default_factory=FrameLedger)
    """Of all requests, and of those that are over."""
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
        self.ended = added(self.ended, usage)
