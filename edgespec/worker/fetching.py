"""Fetching the target's tokenizer from the gateway, for a draft model that has another one.

A link whose `Hello` names no tokenizer serves for that only: one piece is asked for at a time, and the whole has the
size and the SHA-256 that came with its first piece. Nothing is stored before.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.handshake import NO_TOKENIZER, Pin, WorkerIdentity
from edgespec.core.protocol.messages import Fetch, Piece, ToWorker
from edgespec.llamacpp.vocabulary_file import keep, kept
from edgespec.worker.link import Addresses, Handler, Link, keep_linked


class _Fetching(Handler):
    """The handler of links that fetch."""

    def __init__(self, followed: Callable[[Link], None]) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._followed = followed
        self._link: Link
        self._first: Piece | None = None
        self._data = bytearray()

    def on_up(self, link: Link) -> None:
        self._followed(link)
        self._link, self._first, self._data = link, None, bytearray()
        link.send(Fetch(0))

    def on_piece(self, piece: Piece) -> None:
        """Raises RemoteProtocolError (`malformed`) for a piece that does not continue the former ones."""
        first = self._first = self._first or piece
        if not self._data and (known := kept(piece.digest)) is not None:
            return self._end(known)
        self._data += piece.data
        if (piece.digest, piece.size) != (first.digest, first.size) or len(self._data) > piece.size or self.done.done():
            raise RemoteProtocolError("malformed", "a piece that does not continue the tokenizer")
        if len(self._data) < piece.size:
            return self._link.send(Fetch(len(self._data)))
        data = bytes(self._data)
        if hashlib.sha256(data).digest() != piece.digest:
            raise RemoteProtocolError("malformed", "the tokenizer has another SHA-256 than the gateway named")
        keep(data)
        return self._end(data)

    def _end(self, data: bytes) -> None:
        if not self.done.done():
            self.done.set_result(data)

    def on_message(self, message: ToWorker) -> None:
        raise RemoteProtocolError("unexpected", "a request for a worker without a tokenizer")


async def fetch_tokenizer(
    addresses: Addresses, me: WorkerIdentity, pin: Pin, followed: Callable[[Link], None]
) -> bytes:
    """The target's tokenizer, from the cache if it is there; `followed` is called with each link.

    Raises what `keep_linked` raises: TokenizerMismatch if the gateway has none to send.
    """
    handler = _Fetching(followed)
    link: asyncio.Future[Any] = asyncio.ensure_future(
        keep_linked(addresses, replace(me, tokenizer_digest=NO_TOKENIZER), pin, handler, rng=random.SystemRandom())
    )
    try:
        await asyncio.wait([link, handler.done], return_when=asyncio.FIRST_COMPLETED)
        if not handler.done.done():
            link.result()
        return handler.done.result()
    finally:
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)
