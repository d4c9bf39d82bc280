"""Fetching the target's tokenizer from the gateway, for a draft model that has another one.

A link whose `Hello` names no tokenizer serves for that only: one piece is asked for at a time, and the whole has the
size and the SHA-256 that came with its first piece. Nothing is stored before.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.core.drafting.translation import Translator
from edgespec.core.errors import ModelError, RemoteProtocolError, TokenizerMismatch
from edgespec.core.protocol.handshake import NO_TOKENIZER, Pin, WorkerIdentity
from edgespec.core.protocol.messages import Fetch, Piece, ToWorker
from edgespec.core.protocol.tokenizer_file import TokenizerFile, unpacked
from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.tokenizer import translation
from edgespec.shared.folders import cache_dir
from edgespec.shared.models import resolve_model
from edgespec.worker.config import WorkerSettings
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


TRIAL_S = 60.0
TRIAL = r"""
import pathlib, sys
from edgespec.llamacpp.tokenizer import GgufTokenizer
GgufTokenizer(pathlib.Path(sys.argv[1])).encode("A trial: 1 \u00e9\U0001f600\n\n  \t<b>".encode())
"""
"""Run by a child process: llama.cpp ends its process where it finds a vocabulary to be impossible."""


def kept(digest: bytes) -> bytes | None:
    """The file of this SHA-256 as it was fetched before; None if it is not there, or no longer the same."""
    try:
        data = _place(digest).read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).digest() == digest else None


def keep(data: bytes) -> None:
    """Stores it by its SHA-256. Raises OSError."""
    place = _place(hashlib.sha256(data).digest())
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".part-", delete=False) as part:
        part.write(data)
    Path(part.name).replace(place)


def translation_by(data: bytes, draft: Path, drafts_digest: bytes) -> Translator | None:
    """As `translation`, from the target's tokenizer as a gateway sent it, by a GGUF file without weights, which
    llama.cpp can read. Raises ModelError.
    """
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(b"".join(_gguf(unpacked(data))))
        file.flush()
        trial = [sys.executable, "-c", TRIAL, file.name]
        try:
            done = subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_S, check=False)
        except subprocess.TimeoutExpired:
            raise ModelError("llama.cpp does not come to an end with the target's tokenizer") from None
        if done.returncode:
            raise ModelError("llama.cpp cannot read the target's tokenizer")
        return translation(Path(file.name), draft, drafts_digest)


def fetched_translation(settings: WorkerSettings, drafter: Drafter, data: bytes) -> Translator | None:
    """Between the tokenizers of the target, as the gateway sent it, and of `draft.model`; None if they are one.

    Raises TokenizerMismatch.
    """
    try:
        return translation_by(data, resolve_model(settings.draft.model), drafter.tokenizer_digest)
    except ModelError as error:
        raise TokenizerMismatch(f"The draft model cannot draft for this target: {error}.") from error


def _place(digest: bytes) -> Path:
    return cache_dir() / "tokenizers" / digest.hex()


def _gguf(file: TokenizerFile) -> Iterator[bytes]:
    """GGUF version 3 (ggml-org/ggml, docs/gguf.md) with no tensors."""
    pairs = [("general.architecture", "llama")]
    pairs += [(f"tokenizer.ggml.{name}", getattr(file, name)) for name in file.__struct_fields__]
    known = [(name, value) for name, value in pairs if value is not None]
    yield b"GGUF" + struct.pack("<IQQ", 3, 0, len(known))
    for name, value in known:
        yield _text(name.encode())
        match value:
            case bool():
                yield struct.pack("<I?", 7, value)
            case int():
                yield struct.pack("<II", 4, value)
            case str():
                yield struct.pack("<I", 8) + _text(value.encode())
            case list():
                kind = 8 if isinstance(value[0], bytes) else 6 if isinstance(value[0], float) else 5
                yield struct.pack("<IIQ", 9, kind, len(value))
                code = {6: "f", 5: "i"}.get(kind)
                yield struct.pack(f"<{len(value)}{code}", *value) if code else b"".join(map(_text, value))


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data
