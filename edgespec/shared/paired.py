"""The machines paired with this one: gateways and peers on a worker, workers on a gateway.

Each list is one JSON file that is replaced atomically and read again when another process has replaced it. Dates are
Unix seconds of this machine's wall clock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from edgespec.core.errors import UNDECODABLE, KeyStoreError, PairingError
from edgespec.core.pairing.groups import DEFAULT_GROUPS, Groups, parse_groups
from edgespec.core.pairing.messages import VERSION, Version
from edgespec.core.peers.messages import PeerReason
from edgespec.core.protocol.handshake import Pin, Standing
from edgespec.core.protocol.messages import Bytes32
from edgespec.core.protocol.names import MAX_NAME, free_name, key_id
from edgespec.core.protocol.rotation import MAX_ROTATIONS
from edgespec.shared.files import locked, private_folder, read_private, write_private

DAY_S = 86400
UnixTime = Annotated[int, Meta(ge=0)]
StoredName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[^\x00-\x1f\x7f-\x9f]+\Z")]
"""Wider than `Name`, so that lists of earlier versions can be read."""
_ID_PREFIX = re.compile(r"[0-9a-f]{4,16}")
_SHOWN = re.compile(r"\(([0-9a-f]{16})\)\W*\Z")
"""A key id in brackets at the end, as logs and lists show a machine: `lab-7 (7ba1073c5e2f9d40)`."""


class PairedGateway(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A gateway that this worker is paired with."""

    key: Bytes32
    """Its Ed25519 public key."""
    spki: Bytes32
    """SHA-256 of its TLS public key: the pin."""
    name: StoredName
    address: Annotated[str, Meta(max_length=300)]
    """Its address at pairing, or where it was last reached (`Address` as text): a hint."""
    min_version: Version
    """The protocol version agreed at pairing: the minimum for later connections."""
    paired_at: UnixTime
    linked_at: UnixTime | None = None
    """When this worker was linked to it last, to a day."""
    formerly: Annotated[tuple[Bytes32, ...], Meta(max_length=MAX_ROTATIONS)] = ()
    """Its keys before its latest rotations."""

    @property
    def pin(self) -> Pin:
        """What a machine must prove that claims to be it."""
        return Pin(self.key, self.spki, float(self.linked_at or self.paired_at))


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
        return "paired" if self.quarantined_at is None else "quarantined"


class PairedPeer(Struct, frozen=True, forbid_unknown_fields=True):
    """Another daemon that this one is paired with. Its TLS key is not pinned: it signs it in each handshake."""

    key: Bytes32
    name: StoredName
    address: Annotated[str, Meta(max_length=300)]
    """Where it listened at pairing, or was last reached: a hint; empty where it was this machine that listened."""
    min_version: Version
    paired_at: UnixTime


class _Keyed(Protocol):
    @property
    def key(self) -> bytes: ...
    @property
    def name(self) -> str: ...


Record = TypeVar("Record", bound=_Keyed)


class _Stored(Struct, Generic[Record], forbid_unknown_fields=True):
    format: Literal[1]
    records: list[Record]


class _List(Generic[Record]):
    """Records by public key in one file of the key folder. Every method raises KeyStoreError for a damaged file."""

    def __init__(self, folder: Path, file: str, record: type[Record]) -> None:
        private_folder(folder)
        self._file = folder / file
        stored: type[_Stored[Record]] = _Stored[record]  # type: ignore[valid-type]
        self._decode = msgspec.json.Decoder(stored).decode
        self._records: dict[bytes, Record] = {}
        self._stamp: tuple[int, ...] | None = None
        self.all()

    def all(self) -> list[Record]:
        """Every record, in the order of pairing."""
        stamp = self._stamp_on_disk()
        if stamp != self._stamp:
            self._records, self._stamp = self._read(), stamp
        return list(self._records.values())

    def get(self, key: bytes) -> Record | None:
        """The record of a public key."""
        self.all()
        return self._records.get(key)

    def find(self, text: str) -> Record:
        """The one record with this key id, first digits of it (at least four), or name.

        Ids have precedence: otherwise a worker named like the first digits of another's id would be revoked in its
        place. Also accepts the form of the logs, a name with the id in brackets. Raises PairingError.
        """
        records = self.all()
        shown = _SHOWN.search(text)
        wanted = shown[1] if shown else text.strip().lower()
        by_id = [r for r in records if _ID_PREFIX.fullmatch(wanted) and key_id(r.key).startswith(wanted)]
        meant = by_id if len(by_id) == 1 else by_id + [r for r in records if r.name == text and r not in by_id]
        if not meant:
            known = ", ".join(map(_shown, records)) or "none"
            raise PairingError(f"No machine called `{text}` is paired; paired are: {known}.")
        if len(meant) > 1:
            raise PairingError(f"`{text}` may mean {' or '.join(map(_shown, meant))}; give more digits of the id.")
        return meant[0]

    def _replace(self, key: bytes, **changes: object) -> None:
        def change(records: dict[bytes, Record]) -> None:
            if key in records:
                records[key] = msgspec.structs.replace(records[key], **changes)  # type: ignore[type-var]

        self._change(change)

    def _change(self, change: Callable[[dict[bytes, Record]], None]) -> None:
        with locked(self._file.parent):
            records = self._read()
            change(records)
            stored: _Stored[Record] = _Stored(format=1, records=list(records.values()))
            write_private(self._file, msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n")
            self._records, self._stamp = records, ()  # read again: another process may write before a look at it

    def _read(self) -> dict[bytes, Record]:
        data = read_private(self._file)
        if data is None:
            return {}
        try:
            return {one.key: one for one in self._decode(data).records}
        except UNDECODABLE as error:
            raise KeyStoreError(
                f"{self._file} is damaged ({error}); restore it from a backup, or remove it and pair again."
            ) from None

    def _stamp_on_disk(self) -> tuple[int, ...] | None:
        try:
            info = self._file.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KeyStoreError(f"{self._file} cannot be read ({error.strerror or error}).") from None
        return info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode


def _shown(record: _Keyed) -> str:
    return f"{record.name} ({key_id(record.key)})"


class PairedGateways(_List[PairedGateway]):
    """The worker's list, in `gateways.json`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: `KeyStore.folder`."""
        super().__init__(folder, "gateways.json", PairedGateway)

    def add(self, key: bytes, spki: bytes, name: str, address: str, min_version: int) -> PairedGateway:
        """Stores a newly paired gateway; replaces the former record of its key."""
        gateway = PairedGateway(key, spki, name, address, min_version, int(time.time()))
        self._change(lambda records: records.update({key: gateway}))
        return gateway

    def reached(self, key: bytes, address: str) -> None:
        """Stores that a paired gateway is linked now, and its address unless that is empty; writes once a day."""
        known, now = self.get(key), int(time.time())
        if known is None:
            return
        address = address or known.address
        if known.address != address or abs(now - (known.linked_at or 0)) >= DAY_S:
            self._replace(key, address=address, linked_at=now)

    def with_key(self, key: bytes) -> PairedGateway | None:
        """The record of the gateway that has this key, or had it before a rotation."""
        return next((one for one in self.all() if key == one.key or key in one.formerly), None)

    def rotate(self, old: bytes, pin: Pin) -> PairedGateway:
        """The gateway of this key has another identity from now on; returns its record. Raises KeyStoreError."""

        def change(records: dict[bytes, PairedGateway]) -> None:
            one = records.pop(old, None)
            if one is None:
                raise KeyStoreError(f"No gateway with the key {key_id(old)} is paired; nothing was stored.")
            former = (*one.formerly, old)[-MAX_ROTATIONS:]
            now = int(time.time())
            records[pin.gateway_key] = msgspec.structs.replace(
                one, key=pin.gateway_key, spki=pin.spki_hash, linked_at=now, formerly=former
            )

        self._change(change)
        return self._records[pin.gateway_key]

    def forget(self, key: bytes) -> None:

        def change(records: dict[bytes, PairedGateway]) -> None:
            records.pop(key, None)

        self._change(change)


class PairedPeers(_List[PairedPeer]):
    """The daemon's list of its peers, in `peers.json`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: `KeyStore.folder`."""
        super().__init__(folder, "peers.json", PairedPeer)

    def add(self, key: bytes, spki: bytes, name: str, address: str, min_version: int) -> PairedPeer:
        """Stores a newly paired peer under a unique name; replaces the former record of its key."""

        def change(records: dict[bytes, PairedPeer]) -> None:
            unique = free_name(name, [one.name for one in records.values() if one.key != key])
            where = address or (records[key].address if key in records else "")
            records[key] = PairedPeer(key, unique, where, min_version, int(time.time()))

        self._change(change)
        return self._records[key]

    def moved(self, key: bytes, address: str) -> None:
        """Stores the address at which a paired peer was reached, if it changed."""
        known = self.get(key)
        if known is not None and known.address != address:
            self._replace(key, address=address)

    def refusal(self, key: bytes) -> PeerReason | None:
        """Why nothing is done for the machine with this key; None where it is paired, and at no later version."""
        peer = self.get(key)
        return "unpaired" if peer is None else "version" if peer.min_version > VERSION else None

    def name_of(self, key: bytes) -> str:
        """The name of a paired peer, for logs; "unknown" for any other key."""
        peer = self.get(key)
        return peer.name if peer is not None else "unknown"

    def forget(self, text: str) -> PairedPeer:
        """Removes the peer that `find(text)` returns. Raises PairingError."""
        peer = self.find(text)

        def change(records: dict[bytes, PairedPeer]) -> None:
            records.pop(peer.key, None)

        self._change(change)
        return peer


class PairedWorkers(_List[PairedWorker]):
    """The gateway's list, in `workers.json`. Revoked workers stay in it, so that they get a signed `revoked`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: `KeyStore.folder`."""
        super().__init__(folder, "workers.json", PairedWorker)

    def add(self, key: bytes, name: str, min_version: int = 1, groups: tuple[str, ...] | None = None) -> PairedWorker:
        """Stores a newly paired worker; replaces the former record of its key, and so ends a revocation.

        A name that another worker has, revoked ones included, gets a number. Without `groups` it keeps its former
        ones, or is in the default group. Raises KeyStoreError.
        """

        def change(records: dict[bytes, PairedWorker]) -> None:
            others = [one for one in records.values() if one.key != key]
            if any(key_id(one.key) == key_id(key) for one in others):  # made on purpose, at great cost
                raise KeyStoreError(f"Another worker's key has the id {key_id(key)}; the new one was not stored.")
            unique = free_name(name, [one.name for one in others])
            former = records[key].groups if key in records else DEFAULT_GROUPS
            records[key] = PairedWorker(key, unique, int(time.time()), min_version, groups=groups or former)

        self._change(change)
        return self._records[key]

    def name_of(self, key: bytes) -> str:
        """The name of a paired worker, for logs and lists; "unknown" for any other key."""
        worker = self.get(key)
        return worker.name if worker is not None else "unknown"

    def lookup(self, key: bytes) -> Standing:
        """The pairing status of this key; a change by another process is seen at the next call."""
        worker = self.get(key)
        return worker.standing if worker is not None else "unpaired"

    def revoke(self, text: str) -> PairedWorker:
        """Revokes the worker that `find(text)` returns; revoking twice changes nothing. Raises PairingError."""
        worker = self.find(text)
        if worker.revoked_at is None:
            self._replace(worker.key, revoked_at=int(time.time()))
        return self.find(key_id(worker.key))

    def quarantine(self, text: str, why: str) -> str:
        """Quarantines the worker that `find(text)` returns; returns its name. `why` is kept. Raises PairingError."""
        worker = self.find(text)
        self._replace(worker.key, quarantined_at=int(time.time()), quarantine=why[:300])
        return worker.name

    def expire(self, text: str, at: float | None) -> PairedWorker:
        """Sets the date from which the worker that `find(text)` returns is refused, if any. Raises PairingError."""
        worker = self.find(text)
        self._replace(worker.key, expires_at=None if at is None else int(at))
        return self.find(key_id(worker.key))

    def rotate(self, old: bytes, new: bytes) -> PairedWorker:
        """The worker of the first key has the second one from now on. Raises KeyStoreError where it cannot."""

        def change(records: dict[bytes, PairedWorker]) -> None:
            if old not in records or any(key_id(key) == key_id(new) for key in records):
                raise KeyStoreError(f"The key {key_id(old)} cannot be replaced by {key_id(new)}; nothing was stored.")
            worker = msgspec.structs.replace(records[old], key=new, rotated_from=old)
            renewed = {one.key: one for one in (worker if one.key == old else one for one in records.values())}
            records.clear()
            records.update(renewed)

        self._change(change)
        return self._records[new]

    def quarantined(self) -> int:
        """How many workers are quarantined."""
        return sum(worker.standing == "quarantined" for worker in self.all())

    def release(self, text: str) -> PairedWorker:
        """Ends the quarantine of the worker that `find(text)` returns. Raises PairingError where there is none."""
        worker = self.find(text)
        if worker.quarantined_at is None:
            raise PairingError(f"Worker {_shown(worker)} is not quarantined; it is {worker.standing}.")
        self._replace(worker.key, quarantined_at=None, quarantine="")
        return self.find(key_id(worker.key))

    def groups_of(self, key: bytes) -> frozenset[str]:
        """The groups of a paired worker; none for any other key."""
        worker = self.get(key)
        return frozenset(worker.groups) if worker is not None else frozenset()

    def regroup(self, text: str, names: Sequence[str]) -> PairedWorker:
        """Sets the groups of the worker that `find(text)` returns. Raises PairingError."""
        worker = self.find(text)
        try:
            self._replace(worker.key, groups=parse_groups(names))
        except ValueError as error:
            raise PairingError(str(error)) from None
        return self.find(key_id(worker.key))

    def seen(self, key: bytes) -> None:
        """Stores the current date as the worker's last connection; does nothing for an unknown key."""
        if self.get(key) is not None:
            self._replace(key, last_seen=int(time.time()))
