"""The target's tokenizer, as workers fetch it: one file, piece by piece, once on a link, and each key seldom."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field

from cloud_gateway.links.link import Download
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
class FileOffer:
    """The file, and when each paired key last began to fetch it."""

    file: bytes
    """Empty if the target's tokenizer cannot be sent."""
    digest: bytes = field(init=False)
    _began: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.digest = hashlib.sha256(self.file).digest()

    @property
    def sends(self) -> bool:
        """Whether there is a file."""
        return bool(self.file)

    @property
    def advice(self) -> str:
        """The end of the sentence with which another tokenizer is refused."""
        if self.file:
            return "it can be fetched"
        return "which is not in a GGUF file: set the worker's `draft.target`"

    def begin(self, worker: str, wire: Wire) -> Download:
        """For this link of a worker, which ends in time. Raises RemoteProtocolError (`busy`) soon after a former."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._began.get(worker, -EVERY_S) < EVERY_S:
            raise RemoteProtocolError("busy", "it has just fetched the tokenizer", close_code=CloseCode.SLOW)

        self._began[worker] = loop.time()
        loop.call_later(FETCH_S, wire.end, RemoteProtocolError("slow", f"no tokenizer in {FETCH_S:g} s"))
        return PieceByPiece(self, wire)

    def piece(self, sent: int, event: Event) -> Piece:
        """The bytes after the first `sent`. Raises RemoteProtocolError (`unexpected`) unless they are asked for."""
        data = self.file[sent : sent + MAX_PIECE_BYTES]
        if not isinstance(event, Fetch) or event.at != sent or not data:
            raise RemoteProtocolError("unexpected", f"not the piece of the tokenizer from byte {sent}")

        return Piece(self.digest, len(self.file), data)


class PieceByPiece:
    """The `Download` of one link."""

    def __init__(self, offer: FileOffer, wire: Wire) -> None:
        self._offer = offer
        self._wire = wire
        self._sent = 0

    def take(self, event: Event) -> None:
        """Sends the next piece. Raises RemoteProtocolError (`unexpected`) for any other request."""
        piece = self._offer.piece(self._sent, event)
        self._sent += len(piece.data)
        self._wire.send(piece)
