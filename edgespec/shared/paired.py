"""The machines paired with this one: a store for any kind of them, and a worker's gateways.

Dates are Unix seconds of this machine's wall clock. A gateway's workers are in cloud_gateway/links/paired.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from edgespec.core.errors import KeyStoreError, PairingError
from edgespec.core.protocol.handshake import MAX_ROTATIONS, Pin
from edgespec.core.protocol.messages import Bytes32, Version
from edgespec.core.protocol.names import MAX_NAME, key_id
from edgespec.shared.files import RecordFile, check_folder

DAY_S = 86400
UnixTime = Annotated[int, Meta(ge=0)]
StoredName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[^\x00-\x1f\x7f-\x9f]+\Z")]
"""Wider than `Name`, so that lists of earlier versions can be read."""
_ID_PREFIX = re.compile(r"[0-9a-f]{4,16}")
_SHOWN = re.compile(r"\(([0-9a-f]{16})\)\W*\Z")
"""A key id in brackets at the end, as logs and lists show a machine: `lab-7 (7ba1073c5e2f9d40)`."""


class _Keyed(Protocol):
    @property
    def key(self) -> bytes: ...
    @property
    def name(self) -> str: ...


Record = TypeVar("Record", bound=_Keyed)
Records = dict[bytes, Record]


class _Stored(Struct, Generic[Record], forbid_unknown_fields=True):
    format: Literal[1]
    records: list[Record]


class PairedMachines(Generic[Record]):
    """Records by public key in one file of the key folder. Every method raises KeyStoreError for a damaged file,
    and for one that is gone (`RecordFile`)."""

    FILE: ClassVar[str]
    RECORD: ClassVar[type[Struct]]

    def __init__(self, folder: Path) -> None:
        """`folder`: `KeyStore.folder`, which the first change makes."""
        check_folder(folder)
        stored: type[_Stored[Record]] = _Stored[self.RECORD]  # type: ignore[name-defined]
        decode = msgspec.json.Decoder(stored).decode
        self._file: RecordFile[bytes, Record] = RecordFile(
            folder / self.FILE,
            lambda data: decode(data).records,
            lambda records: msgspec.json.encode({"format": 1, "records": records}),
            lambda record: record.key,
            "pair again",
        )
        self.all()

    def all(self) -> list[Record]:
        """Every record, in the order of pairing."""
        return list(self._file.by_key().values())

    def get(self, key: bytes) -> Record | None:
        return self._file.by_key().get(key)

    def name_of(self, key: bytes) -> str:
        """The name of a paired machine, for logs and lists; "unknown" for any other key."""
        known = self.get(key)
        if known is not None:
            return known.name
        return "unknown"

    def find(self, text: str) -> Record:
        """The one record with this key id, first digits of it (at least four), or name.

        Ids have precedence: otherwise a worker named like the first digits of another's id would be revoked in its
        place. Also accepts the form of the logs, a name with the id in brackets. Raises PairingError.
        """
        records = self.all()
        shown = _SHOWN.search(text)
        wanted = shown[1] if shown else text.strip().lower()
        by_id = [r for r in records if _ID_PREFIX.fullmatch(wanted) and key_id(r.key).startswith(wanted)]
        if len(by_id) == 1:
            meant = by_id
        else:
            meant = by_id + [r for r in records if r.name == text and r not in by_id]
        if not meant:
            known = ", ".join(map(shown_as, records)) or "none"
            raise PairingError(f"No machine called `{text}` is paired; paired are: {known}.")
        if len(meant) > 1:
            raise PairingError(f"`{text}` may mean {' or '.join(map(shown_as, meant))}; give more digits of the id.")

        return meant[0]

    def update(self, key: bytes, **changes: object) -> Record | None:
        """Changes fields of a record; None if there is none."""

        def change(records: Records[Record]) -> Record | None:
            if key in records:
                records[key] = msgspec.structs.replace(records[key], **changes)  # type: ignore[type-var]
            return records.get(key)

        return self._file.change(change)

    def rekey(self, old: bytes, new: bytes, **changes: object) -> Record:
        """The machine of the first key has the second one from now on, in the same place of the list.

        Raises KeyStoreError if none has the first one, or one has an id like the second.
        """

        def change(records: Records[Record]) -> Record:
            if old not in records or any(key_id(key) == key_id(new) for key in records):
                raise KeyStoreError(f"The key {key_id(old)} cannot be replaced by {key_id(new)}; nothing was stored.")

            renewed = msgspec.structs.replace(records[old], key=new, **changes)  # type: ignore[type-var]
            listed = [renewed if key == old else one for key, one in records.items()]
            records.clear()
            records.update({one.key: one for one in listed})
            return renewed

        return self._file.change(change)

    def forget(self, key: bytes) -> None:
        self._file.change(lambda records: records.pop(key, None))

    def _put(self, key: bytes, make: Callable[[Record | None, list[Record]], Record]) -> Record:
        """Stores what `make` returns for the former record of this key and all other ones; a new one comes last."""

        def change(records: Records[Record]) -> Record:
            others = [one for one in records.values() if one.key != key]
            records[key] = made = make(records.get(key), others)
            return made

        return self._file.change(change)


def shown_as(record: _Keyed) -> str:
    """A machine in texts: its name with its key id."""
    return f"{record.name} ({key_id(record.key)})"


class PairedGateway(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A gateway that this worker is paired with."""

    key: Bytes32
    """Its Ed25519 public key."""
    spki: Bytes32
    """SHA-256 of its TLS public key: the pin."""
    name: StoredName
    address: Annotated[str, Meta(max_length=300)]
    """Its address at pairing, or the last at which it was reached (`Address` as text): a hint."""
    min_version: Version
    """The protocol version agreed at pairing: the minimum for later connections."""
    paired_at: UnixTime
    linked_at: UnixTime | None = None
    """When this worker was linked to it last, to a day."""
    formerly: Annotated[tuple[Bytes32, ...], Meta(max_length=MAX_ROTATIONS)] = ()
    """Its keys before its latest rotations."""

    @property
    def pin(self) -> Pin:
        """The keys that a machine must prove to be it."""
        return Pin(self.key, self.spki, float(self.linked_at or self.paired_at))


class PairedGateways(PairedMachines[PairedGateway]):
    FILE = "gateways.json"
    RECORD = PairedGateway

    def add(self, key: bytes, spki: bytes, name: str, address: str, min_version: int) -> PairedGateway:
        """Stores a newly paired gateway; replaces the former record of its key."""
        gateway = PairedGateway(key, spki, name, address, min_version, int(time.time()))
        return self._put(key, lambda former, others: gateway)

    def reached(self, key: bytes, address: str) -> None:
        """Stores that a paired gateway is linked now, and its address unless that is empty; writes once a day."""
        known = self.get(key)
        now = int(time.time())
        if known is None:
            return

        address = address or known.address
        if known.address != address or abs(now - (known.linked_at or 0)) >= DAY_S:
            self.update(key, address=address, linked_at=now)

    def with_key(self, key: bytes) -> PairedGateway | None:
        """The record of the gateway that has this key, or had it before a rotation."""
        return next((one for one in self.all() if key == one.key or key in one.formerly), None)

    def rotate(self, old: bytes, pin: Pin) -> PairedGateway:
        """The gateway of this key has another identity from now on; returns its record. Raises KeyStoreError."""
        known = self.get(old)
        if known is not None:
            formerly = (*known.formerly, old)[-MAX_ROTATIONS:]
        else:
            formerly = ()
        return self.rekey(
            old,
            pin.gateway_key,
            spki=pin.spki_hash,
            linked_at=int(time.time()),
            formerly=formerly,
        )
