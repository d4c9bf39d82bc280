"""The seam of what judges workers by what they did on their links."""

from __future__ import annotations

from collections.abc import Hashable


class Judge:
    """Decides whether a worker is quarantined. This one, the core's, never quarantines.

    Links call it on the event loop. If a method returns a sentence, the worker is quarantined for that reason: its
    link ends, and its next handshakes are refused until the operator releases it. A judge may not block.
    """

    def drafted(self, worker: str, key: str, claimed: float, accepted: int, now: float) -> str | None:
        """One request of an API key has ended; returns why the worker is to be quarantined, or None.

        Args:
            worker: Key id.
            key: Id of the API key.
            claimed: Sum of the probabilities that the worker stated for those of its verified candidates at which the
                target chose.
            accepted: How many of these the target chose.
            now: Seconds, monotonic.
        """
        return None

    def fault(self, worker: str, reason: str, request_of: Hashable, now: float) -> str | None:
        """The worker's link ended by its own fault; returns why it is to be quarantined, or None.

        `request_of`: whose request a faulty tree was for, anything that differs between API keys; None for a fault that
        no prompt can cause.
        """
        return None

    def renamed(self, worker: str, to: str) -> None:
        """The worker has another id from now on, and keeps its record."""

    def forget(self, worker: str) -> None:
        """The worker's record begins again: it was quarantined."""
