"""What the gateway has against this worker, for `edgespec status`."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgespec.core.protocol.handshake import Notice

CONTEST_SHOWN_S = 600.0
"""For how long after the latest takeover of a link it is shown that another process has this worker's key."""


class Notices:
    """The latest notice, for as long as it is true."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._latest: Notice | None = None
        self._at = 0.0

    def add(self, notice: Notice) -> None:
        """The gateway has just ended a link for this reason."""
        self._latest = notice
        self._at = self._clock()

    def linked(self) -> None:
        """A link refutes every notice but one: two processes with one key link in turn, and end each other's links."""
        if self._latest is not None and self._latest.reason != "superseded":
            self._latest = None

    def current(self) -> dict[str, str | None]:
        """The fields of the status: the notice's text, and its reason; None for both if there is nothing."""
        notice = self._latest
        if notice is None or (notice.reason == "superseded" and self._clock() - self._at > CONTEST_SHOWN_S):
            return {"refused": None, "refused_because": None}
        return {"refused": notice.text, "refused_because": notice.reason}
