"""Daemons of one campus as peers of one another: they pair, show what each does, and relay one another to a gateway.

A relay forwards the bytes of the TLS connection that worker and gateway make through it, and has no key to read or
change them (docs/peers.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.parts.peer_relay.settings import REMOVED, PeersSection, RelaySection
from edgespec.parts.peer_relay.verbs import PeersVerb
from edgespec.worker.part import PairingOption, RunningPart, WorkerPart, WorkerProcess

if TYPE_CHECKING:
    from edgespec.core.pairing.messages import Code
    from edgespec.shared.keystore import KeyStore
    from edgespec.shared.paired import PairedGateway


def _start(worker: WorkerProcess) -> RunningPart:
    from edgespec.parts.peer_relay.running import peers_of

    return peers_of(worker)


async def _pair(keys: KeyStore, name: str, code: Code) -> PairedGateway:
    from edgespec.parts.peer_relay.pairing import pair_through_peers

    return await pair_through_peers(keys, name, code)


PART = WorkerPart(
    "peer_relay",
    settings={"peers": PeersSection, "relay": RelaySection},
    removed=REMOVED,
    example=Path(__file__).with_name("worker.toml"),
    verbs=[PeersVerb()],
    start=_start,
    handlers=("peers", "invite"),
    pairing=[PairingOption("--relay", "reach the gateway through a paired peer that is linked to it", _pair)],
)
