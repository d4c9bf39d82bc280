"""The seam of what decides which requests of an API key may compute, and is sent what they used.

The bounds that protect the process itself are the core's (`core/limits/visits.py`). A part may bring further ones by
`Running.admission`: it reserves what a request can use at most, and gets the rest back at the request's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cloud_gateway.auth import Key


@dataclass(frozen=True, slots=True)
class TokenUse:
    """Tokens of one request."""

    computed: int = 0
    """By the target: of its prompts, and of its completions."""
    tokenised: int = 0
    """For the client alone, by `/tokenize`."""


class Reservation(Protocol):
    """What one request has reserved at one admission."""

    def end(self, used: TokenUse) -> None:
        """The request is over, whatever became of it. Called once, on the event loop."""


class KeyAdmission(Protocol):
    """Called by the API on the event loop; it may not block. `now` is in seconds, monotonic."""

    def reserve(self, key: Key, most: TokenUse, now: float) -> Reservation:
        """A request is about to be computed; called before any of it is.

        `most`: what it can use. `/tokenize` cannot say how much that is, and asks for one token. Raises ClientError
        429 with a time after which to try again.
        """

    def headers(self, key: Key, now: float) -> Mapping[str, str]:
        """Headers of a response to this key, whatever its status."""


class Reservations:
    """Those of one request at all admissions, until `end`."""

    def __init__(self, key: Key, admissions: Sequence[KeyAdmission]) -> None:
        self._key = key
        self._admissions = admissions
        self._held: list[Reservation] = []

    def reserve(self, most: TokenUse, now: float) -> None:
        """Asks each admission. Raises ClientError 429."""
        for admission in self._admissions:
            self._held.append(admission.reserve(self._key, most, now))

    def end(self, used: TokenUse) -> None:
        """The request is over."""
        for reservation in self._held:
            reservation.end(used)
