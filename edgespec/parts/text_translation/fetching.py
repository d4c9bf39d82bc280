"""Fetching the target's tokenizer from the gateway, for a draft model that has another one.

A link whose `Hello` names no tokenizer serves for that only: one piece is asked for at a time, and the whole has the
size and the SHA-256 that came with its first piece. Nothing is stored before.

What a gateway sends ends no worker: another tokenizer is fetched four times an hour at most, it is tried in a child
process, and if it is refused the worker goes on and links as before as soon as the gateway takes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.core.errors import ModelError, RemoteProtocolError
from edgespec.core.protocol.handshake import NO_TOKENIZER, Pin, WorkerIdentity
from edgespec.core.protocol.messages import Fetch, Piece, ToWorker
from edgespec.parts.text_translation import trial
from edgespec.parts.text_translation.gguf import translation
from edgespec.parts.text_translation.store import MAX_FETCHES, TokenizerStore
from edgespec.parts.text_translation.tokenizer_file import TokenizerFile, unpacked
from edgespec.parts.text_translation.translation import Translator
from edgespec.worker.link import Addresses, Handler, Link, keep_linked

TRIAL_S = 600.0
"""Longest time of a trial, whose processor time has a limit of its own: the child has the lowest priority, and may wait
long for a core."""


class _Fetching(Handler):
    """The handler of links that fetch."""

    def __init__(self, store: TokenizerStore, followed: Callable[[Link], None]) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._store = store
        self._followed = followed
        self._link: Link
        self._first: Piece | None
        self._data: bytearray

    def on_up(self, link: Link) -> None:
        self._followed(link)
        self._link = link
        self._first = None
        self._data = bytearray()
        link.send(Fetch(0))

    def on_piece(self, piece: Piece) -> None:
        """Raises RemoteProtocolError (`malformed`) for a piece that does not continue the former ones."""
        if self._first is None:
            self._first = piece
            if self._is_decided(piece.digest):
                return

        first = self._first
        self._data += piece.data
        if (piece.digest, piece.size) != (first.digest, first.size) or len(self._data) > piece.size or self.done.done():
            raise RemoteProtocolError("malformed", "a piece that does not continue the tokenizer")

        if len(self._data) < piece.size:
            self._link.send(Fetch(len(self._data)))
            return

        data = bytes(self._data)
        if hashlib.sha256(data).digest() != piece.digest:
            raise RemoteProtocolError("malformed", "the tokenizer has another SHA-256 than the gateway named")

        self._store.keep(data)
        self._end(data)

    def _is_decided(self, digest: bytes) -> bool:
        """Whether the SHA-256 alone ends the fetching: the tokenizer is kept or was refused, or it is one too many."""
        now = time.time()
        refusal = self._store.refusal(digest, now)
        kept = self._store.kept(digest)
        if refusal:
            self.done.set_exception(ModelError(refusal))
        elif kept is not None:
            self._end(kept)
        elif (next_at := self._store.next_at(now)) is not None:
            clock = time.strftime("%H:%M", time.localtime(next_at))
            many = f"it has sent {MAX_FETCHES} other tokenizers within an hour"
            self.done.set_exception(ModelError(f"{many}, and the next one is fetched at {clock}"))
        else:
            self._store.begin(now)
        return self.done.done()

    def _end(self, data: bytes) -> None:
        if not self.done.done():
            self.done.set_result(data)

    def on_message(self, message: ToWorker) -> None:
        raise RemoteProtocolError("unexpected", "a request for a worker without a tokenizer")


async def fetch_tokenizer(
    addresses: Addresses, me: WorkerIdentity, pin: Pin, store: TokenizerStore, followed: Callable[[Link], None]
) -> bytes:
    """The target's tokenizer, from the store if it is there; `followed` is called with each link.

    Raises ModelError if the store does not want what the gateway offers, and what `keep_linked` raises:
    TokenizerMismatch if it has none to send.
    """
    handler = _Fetching(store, followed)
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


async def fetch_translation(
    fetch: Callable[[], Awaitable[bytes]], store: TokenizerStore, draft: tuple[Path, bytes], former: bytes
) -> tuple[bytes, Translator | None]:
    """The SHA-256 of the target's tokenizer, and the translation by it; None if it is the draft's own.

    `draft`: the file and its tokenizer's digest; `former`: what this returned last, which the gateway has refused since
    then. Raises ModelError if the tokenizer cannot be used, which the store remembers, and what `fetch` raises.
    """
    data = await fetch()
    digest = hashlib.sha256(data).digest()
    try:
        if digest == former:
            raise ModelError("it refuses the tokenizer that it sent")
        return digest, await translation_by(data, *draft)
    except ModelError as error:
        store.refuse(digest, str(error), time.time())
        raise


async def translation_by(data: bytes, draft: Path, drafts_digest: bytes) -> Translator | None:
    """As `translation`, from the target's tokenizer as a gateway sent it, by a GGUF file without weights, which
    llama.cpp can read. Raises ModelError.
    """
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        await asyncio.to_thread(_write, data, Path(file.name))
        await _require_trial(Path(file.name), draft)
        return await asyncio.to_thread(translation, Path(file.name), draft, drafts_digest)


async def _require_trial(target: Path, draft: Path) -> None:
    """Raises ModelError unless llama.cpp cuts text with the target's tokenizer in a child process."""
    limits = trial.CPU_S, trial.MEMORY_BYTES
    command = [sys.executable, "-P", "-m", trial.__name__, str(target), str(draft), *map(str, limits)]
    none = asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(*command, stdin=none, stdout=none, stderr=none)
    try:
        code = await asyncio.wait_for(child.wait(), TRIAL_S)
    except TimeoutError:
        code = -signal.SIGXCPU
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()

    if -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        raise ModelError("the trial of its tokenizer was ended by another program; memory may be short")
    if code == -signal.SIGXCPU:
        raise ModelError(f"llama.cpp takes more than {trial.CPU_S} s to try its tokenizer")
    if code < 0:
        limit_mb = trial.MEMORY_BYTES >> 20
        name = signal.Signals(-code).name
        raise ModelError(f"its tokenizer ends llama.cpp in a trial with {limit_mb} MB of memory ({name})")
    if code:
        raise ModelError("llama.cpp cannot read its tokenizer")


def _write(data: bytes, place: Path) -> None:
    place.write_bytes(b"".join(_gguf(unpacked(data))))


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
                if isinstance(value[0], bytes):
                    kind = 8
                else:
                    kind = 6 if isinstance(value[0], float) else 5
                yield struct.pack("<IIQ", 9, kind, len(value))
                code = {6: "f", 5: "i"}.get(kind)
                yield struct.pack(f"<{len(value)}{code}", *value) if code else b"".join(map(_text, value))


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data
