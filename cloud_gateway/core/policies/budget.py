"""`policy.prefer`: how many local passes are made while a worker drafts. A price alone would buy them everywhere or
nowhere, so that they are counted."""

from __future__ import annotations

from cloud_gateway.core.policies.settings import Prefer
from cloud_gateway.core.policies.tuning import Tuning


class Budget:
    """Allows a share of the passes of co-located k = 2; `latency` has no limit."""

    def __init__(self, prefer: Prefer, tuning: Tuning) -> None:
        self.limited = prefer != "latency"
        self._share = tuning.share if prefer == "balanced" else 0.0
        self._credit = self._latest = 0.0

    @property
    def open(self) -> bool:
        """Whether a run of local passes may begin; it may then overdraw, so that runs are as long as they pay."""
        return not self.limited or self._credit > 0

    def earn(self, passes: float) -> None:
        """Tokens were emitted, for which co-located k = 2 makes so many passes."""
        self._credit += self._share * passes

    def spend(self, share: float = 1.0) -> None:
        """A local pass is to be made, of which this is the request's share."""
        self._credit, self._latest = self._credit - share, share

    def give_back(self) -> None:
        """The latest pass is not made."""
        self._credit += self._latest
