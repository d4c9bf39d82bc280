"""The workers that this gateway is paired with, in `workers.json` of the key folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from edgespec.core.errors import KeyStoreError, PairingError
from edgespec.core.pairing.groups import DEFAULT_GROUPS, Groups, parse_groups
from edgespec.core.protocol.handshake import Standing
from edgespec.core.protocol.messages import VERSION, Bytes32, Version
from edgespec.core.protocol.names import free_name, key_id
from edgespec.shared.paired import PairedMachines, StoredName, UnixTime, shown_as


class PairedWorker(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A worker that this gateway is paired with, or that was revoked."""

    key: Bytes32
    name: StoredName
    """Its name at pairing, made unique among the records."""
    paired_at: UnixTime
    min_version: Version = 1
    """The protocol version agreed at pairing, below which it is refused."""
    revoked_at: UnixTime | None = None
    last_seen: UnixTime | None = None
    groups: Groups = DEFAULT_GROUPS
    """It drafts for API keys that name one of these."""
    expires_at: UnixTime | None = None
    """Date from which it is refused; None: never."""
    rotated_from: Bytes32 | None = None
    """Its key before the latest rotation."""
    quarantined_at: UnixTime | None = None
    quarantine: Annotated[str, Meta(max_length=300)] = ""
    """Why it is quarantined."""

    @property
    def standing(self) -> Standing:
        """Whether it may connect."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and time.time() >= self.expires_at:
            return "expired"
        if self.min_version > VERSION:
            return "version"
        if self.quarantined_at is not None:
            return "quarantined"
        return "paired"


class PairedWorkers(PairedMachines[PairedWorker]):
    """The gateway's list. Revoked workers stay in it, so that they get a signed `revoked`."""

    FILE = "workers.json"
    RECORD = PairedWorker

    def add(
        self,
        key: bytes,
        name: str,
        min_version: int = 1,
        groups: tuple[str, ...] | None = None,
    ) -> PairedWorker:
        """Stores a newly paired worker; replaces the former record of its key, and so ends a revocation.

        A name that another worker has, revoked ones included, gets a number. Without `groups` it keeps its former
        ones, or is in the default group. Raises KeyStoreError.
        """

        def make(former: PairedWorker | None, others: list[PairedWorker]) -> PairedWorker:
            if any(key_id(other.key) == key_id(key) for other in others):  # made on purpose, at great cost
                raise KeyStoreError(f"Another worker's key has the id {key_id(key)}; the new one was not stored.")

            chosen = groups or DEFAULT_GROUPS
            if former is not None and not groups:
                chosen = former.groups
            return PairedWorker(
                key,
                free_name(name, [other.name for other in others]),
                int(time.time()),
                min_version,
                groups=chosen,
            )

        return self._put(key, make)

    def lookup(self, key: bytes) -> Standing:
        """The pairing status of this key; a change by another process is seen at the next call."""
        worker = self.get(key)
        if worker is not None:
            return worker.standing
        return "unpaired"

    def revoke(self, text: str) -> PairedWorker:
        """Revokes the worker that `find(text)` returns; revoking twice changes nothing. Raises PairingError."""
        worker = self.find(text)
        if worker.revoked_at is not None:
            return worker
        return self._set(worker, revoked_at=int(time.time()))

    def quarantine(self, text: str, why: str) -> str:
        """Quarantines the worker that `find(text)` returns; returns its name. `why` is kept. Raises PairingError."""
        worker = self.find(text)
        self._set(worker, quarantined_at=int(time.time()), quarantine=why[:300])
        return worker.name

    def expire(self, text: str, at: float | None) -> PairedWorker:
        """Sets the date from which the worker that `find(text)` returns is refused, if any. Raises PairingError."""
        expires_at = None
        if at is not None:
            expires_at = int(at)
        return self._set(self.find(text), expires_at=expires_at)

    def rotate(self, old: bytes, new: bytes) -> PairedWorker:
        """The worker of the first key has the second one from now on. Raises KeyStoreError if it cannot."""
        return self.rekey(old, new, rotated_from=old)

    def quarantined(self) -> int:
        """How many workers are quarantined."""
        return sum(worker.standing == "quarantined" for worker in self.all())

    def release(self, text: str) -> PairedWorker:
        """Ends the quarantine of the worker that `find(text)` returns. Raises PairingError if there is none."""
        worker = self.find(text)
        if worker.quarantined_at is None:
            raise PairingError(f"Worker {shown_as(worker)} is not quarantined; it is {worker.standing}.")

        return self._set(worker, quarantined_at=None, quarantine="")

    def groups_of(self, key: bytes) -> frozenset[str]:
        """The groups of a paired worker; none for any other key."""
        worker = self.get(key)
        if worker is not None:
            return frozenset(worker.groups)
        return frozenset()

    def regroup(self, text: str, names: Sequence[str]) -> PairedWorker:
        """Sets the groups of the worker that `find(text)` returns. Raises PairingError."""
        worker = self.find(text)
        try:
            return self._set(worker, groups=parse_groups(names))
        except ValueError as error:
            raise PairingError(str(error)) from None

    def seen(self, key: bytes) -> None:
        """Stores the current date as the worker's last connection; does nothing for an unknown key."""
        self.update(key, last_seen=int(time.time()))

    def _set(self, worker: PairedWorker, **changes: object) -> PairedWorker:
        return self.update(worker.key, **changes) or worker  # removed by another process meanwhile
