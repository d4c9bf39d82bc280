"""What peers send and store, for `python -m tools.fuzz`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgespec.core.errors import KeyStoreError, RemoteProtocolError
from edgespec.core.protocol.messages import PROTOCOL, Message, encode
from edgespec.parts.peer_relay.handshake import Ask, Granted, PeerChallenge, PeerHello, PeerRefused, decode_peer
from edgespec.parts.peer_relay.paired import PairedPeer, PairedPeers
from tools.fuzz.decoder import JSON, MSGPACK, Decoder, Stored
from tools.fuzz.ends import GATEWAY_KEY, NONCE, SIGNATURE, WORKER_KEY

MESSAGES: Sequence[Message] = (
    PeerHello(PROTOCOL, WORKER_KEY.public, NONCE),
    PeerChallenge(GATEWAY_KEY.public, NONCE, SIGNATURE),
    Ask("relay", GATEWAY_KEY.public, SIGNATURE),
    Granted("lab-8", True, [GATEWAY_KEY.public]),
    PeerRefused("off"),
)
PEER = PairedPeer(WORKER_KEY.public, "lab-7", "10.0.0.7:7444", 1, 1_700_000_000)
LISTED = msgspec.json.encode({"format": 1, "records": [PEER]})
DECODERS = {
    "peer message": Decoder(decode_peer, [encode(message) for message in MESSAGES], RemoteProtocolError, MSGPACK),
}
STORED = {
    "peers.json": Stored(PairedPeers.FILE, lambda path: PairedPeers(path.parent).all(), [LISTED], KeyStoreError, JSON),
}
