"""When a worker dials its gateway again; pure, `now` is passed in.

A gateway that goes away after it had been linked is probably being restarted: its workers dial again every few seconds,
at times spread so that a thousand of them do not come at once. Everything else backs off with full jitter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from edgespec.core.protocol.handshake import CloseCode

FIRST_S = 1.0
"""Ceiling of the first wait of the back-off, which doubles up to `LONGEST_S`."""
LONGEST_S = 90.0
SETTLED_S = 60.0
"""A link that was authenticated for this long resets the back-off."""
SPREAD_S = 0.5, 8.0
"""Shortest and longest wait while a gateway restarts. A thousand workers then dial at most 240 times a second, of which
a closed port costs the gateway nothing, and an open one admits 500 at once and 100 a second (docs/protocol.md)."""
MIN_LINKED_S = 5.0
"""Of a link whose end counts as a restart: a gateway that ends its links at once is not dialled every few seconds."""
RESTART_S = 120.0, 1800.0
"""Shortest and longest time for which a restart is waited for, around twice what the gateway states."""
CONTESTED_S = 15.0
"""Longest wait after another process linked with this worker's key: with `LONGEST_S` a worker would stay out for a
minute and a half after the other one has stopped. Forty copies then dial five times a second."""
_BACK = re.compile(r"stopping, back in (\d{1,6}) s")


def restart_reason(back_s: float) -> str:
    """The close reason of a gateway that stops and, if it is started again, needs this long for that."""
    return f"stopping, back in {min(back_s, 999_999):.0f} s"


def restart_s(code: int, reason: str) -> float | None:
    """For how long to wait for a restart after a close frame; None: it announces none."""
    if code not in (CloseCode.GOING_AWAY, CloseCode.RESTART):
        return None

    stated = _BACK.fullmatch(reason)
    if stated is None:
        return RESTART_S[0]
    return min(max(2 * float(stated[1]), RESTART_S[0]), RESTART_S[1])


@dataclass(slots=True)
class Redial:
    """The waits of one worker between its attempts."""

    uniform: Callable[[float, float], float]
    """A random number between two, as `random.Random.uniform`."""
    _ceiling_s: float = FIRST_S
    _restarts_until: float = -inf

    def ended(self, linked_s: float, settled_s: float = SETTLED_S) -> None:
        """A link ended so many seconds after it was authenticated."""
        if linked_s >= settled_s:
            self._ceiling_s = FIRST_S

    def restarts(self, now: float, linked_s: float, for_s: float = RESTART_S[0]) -> None:
        """The gateway went away; it is expected back within `for_s`, if the link was one for long enough."""
        if linked_s >= MIN_LINKED_S:
            self._restarts_until = now + for_s
            self._ceiling_s = max(self._ceiling_s, SPREAD_S[1])

    def contested(self) -> None:
        """A link was ended by one of another process with the same key."""
        self._ceiling_s = min(self._ceiling_s, CONTESTED_S)

    def wait_s(self, now: float) -> float:
        """How long to wait before the next attempt."""
        if now < self._restarts_until:
            return self.uniform(*SPREAD_S)

        wait_s = self.uniform(0, self._ceiling_s)
        self._ceiling_s = min(2 * self._ceiling_s, LONGEST_S)
        return wait_s
