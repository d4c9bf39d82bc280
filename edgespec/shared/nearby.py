"""Machines on the networks of this one: the seam of a part that finds them and announces this one.

Without such a part a machine is reached at an address that a person typed, or where it was reached before. What is
found is a hint, since anybody on the network can announce anything: keys decide which machine is trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edgespec.shared.address import LINK_PATH, Address


@dataclass(frozen=True, slots=True)
class Kind:
    """Machines that announce the same thing."""

    name: str
    """At most 14 lower-case letters and hyphens."""
    path: str
    """Of the port that is announced."""
    command: str
    """The command that pairs with such a machine."""


GATEWAY = Kind("edgespec", LINK_PATH, "edgespec pair")


@dataclass(frozen=True, slots=True)
class Found:
    """A machine that announces itself. Nothing of it is authenticated."""

    name: str
    addresses: tuple[Address, ...]
    """Best first, at least one."""
    key_hash: str
    """Key id (core/protocol/names.py) of its Ed25519 key."""
    tls_hash: bytes
    """SHA-256 of its public TLS key."""


class Finder(Protocol):
    """The machines of one kind that announce themselves at present; for use on the event loop.

    It may use the network, and logs what keeps it from working: none of its methods fails.
    """

    @property
    def method(self) -> str:
        """How it finds machines, for texts."""

    @property
    def needs(self) -> str:
        """What has to be allowed in a network so that it works: the object of "allow"."""

    @property
    def problem(self) -> str | None:
        """Why it does not work at present; None while it does."""

    async def start(self) -> None:
        """Begins to search. Called once, by who made it."""

    async def close(self) -> None:
        """Ends the search."""

    def found(self, key_hash: str | None = None) -> list[Found]:
        """The present machines, those at which fewest dials failed first; with `key_hash` those of this key id.

        Called before each round of dialling, and by `edgespec pair` until one fits its code.
        """

    def failed(self, address: Address) -> None:
        """The wanted machine is not at this address. Called after each dial that shows that."""

    def rotated(self, key_hash: str) -> None:
        """The one machine that it searches for has this key id from now on."""

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Waits until the condition holds, which is checked when something was found, or the time is over."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What a machine announces of itself."""

    name: str
    key: bytes
    """Its Ed25519 key."""
    spki_hash: bytes
    """SHA-256 of its public TLS key."""
    host: str
    """The address that its port listens at, as the configuration has it."""
    port: int


class Announcer(Protocol):
    """Announces one open port of this machine; for use on the event loop. None of its methods fails."""

    @property
    def works(self) -> bool:
        """Whether other machines can find this one at present. Read by `cloud-gateway pair`, which says so."""

    def start(self) -> None:
        """Begins to announce, in the background. Called once, when the port is open."""

    async def close(self) -> None:
        """Withdraws the announcement. Called when the port closes."""


class Nearby:
    """Finds and announces machines. This one, the core's, does neither."""

    def finder(self, kind: Kind) -> Finder | None:
        """Finds all machines of a kind. Called by a verb that pairs by a code alone, and by parts."""
        return None

    def gateway_finder(self, key_hash: str) -> Finder | None:
        """Finds the gateway with this key id; None also if the configuration of the worker has that off.

        Called by the worker's service when it starts, and by what examines a worker.
        """
        return None

    def announcer(self, kind: Kind, machine: Announced) -> Announcer | None:
        """Announces this machine; None also if the configuration of the gateway has that off.

        Called by the gateway when its link port is open, and by parts that open a port of another kind.
        """
        return None


ALONE = Nearby()
