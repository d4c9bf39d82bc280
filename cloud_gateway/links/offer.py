"""The target's tokenizer as workers fetch it: each link once from its beginning to its end, each key seldom."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.handshake import CloseCode
from edgespec.core.protocol.messages import MAX_PIECE_BYTES, Fetch, Piece
from edgespec.core.protocol.session import Event
from edgespec.shared.wire import Wire

FETCH_S = 120.0
"""For a whole tokenizer: 64 pieces of four megabytes take as many round trips."""
EVERY_S = 10.0
"""Between two beginnings of a key: a worker keeps what it has fetched."""


@dataclass(slots=True)
class Offer:
    """The file, and when each paired key last began to fetch it."""

    file: bytes
    digest: bytes = field(init=False)
    _began: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.digest = hashlib.sha256(self.file).digest()

    def begin(self, worker: str, wire: Wire) -> Sending:
        """For this link of a worker, which ends in time. Raises RemoteProtocolError (`busy`) soon after a former."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._began.get(worker, -EVERY_S) < EVERY_S:
            raise RemoteProtocolError("busy", "it has just fetched the tokenizer", close_code=CloseCode.SLOW)
        self._began[worker] = loop.time()
        loop.call_later(FETCH_S, wire.end, RemoteProtocolError("slow", f"no tokenizer in {FETCH_S:g} s"))
        return Sending(self)


@dataclass(slots=True)
class Sending:
    """What one link has fetched."""

    offer: Offer
    sent: int = 0

    def next(self, event: Event) -> Piece:
        """The piece that was asked for. Raises RemoteProtocolError (`unexpected`) for all but a `Fetch` of the next."""
        at = event.at if isinstance(event, Fetch) else -1
        data = self.offer.file[self.sent : self.sent + MAX_PIECE_BYTES]
        if at != self.sent or not data:
            raise RemoteProtocolError("unexpected", f"not the piece of the tokenizer from byte {self.sent}")
        self.sent += len(data)
        return Piece(self.offer.digest, len(self.offer.file), data)
