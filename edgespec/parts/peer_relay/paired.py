"""The peers that this daemon is paired with, in a list of the key folder."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta, Struct

from edgespec.core.protocol.messages import Bytes32, Version
from edgespec.core.protocol.names import free_name
from edgespec.shared.paired import PairedMachines, StoredName, UnixTime


class PairedPeer(Struct, frozen=True, forbid_unknown_fields=True):
    """Another daemon that this one is paired with. Its TLS key is not pinned: it signs it in each handshake."""

    key: Bytes32
    name: StoredName
    address: Annotated[str, Meta(max_length=300)]
    """Its address at pairing, or the last at which it was reached: a hint; empty if this machine listened."""
    min_version: Version
    paired_at: UnixTime


class PairedPeers(PairedMachines[PairedPeer]):
    FILE = "peers.json"
    RECORD = PairedPeer

    def add(self, key: bytes, spki: bytes, name: str, address: str, min_version: int) -> PairedPeer:
        """Stores a newly paired peer under a unique name; replaces the former record of its key."""

        def make(former: PairedPeer | None, others: list[PairedPeer]) -> PairedPeer:
            unique = free_name(name, [one.name for one in others])
            where = address or (former.address if former is not None else "")
            return PairedPeer(key, unique, where, min_version, int(time.time()))

        return self._put(key, make)

    def moved(self, key: bytes, address: str) -> None:
        """Stores the address at which a paired peer was reached, if it changed."""
        known = self.get(key)
        if known is not None and known.address != address:
            self.update(key, address=address)
