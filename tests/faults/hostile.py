"""Faults by the other side: a gateway that sends an impossible tokenizer, and copies of a worker's key."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import WorkerIdentity
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.session import Event
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.shared.vocabfiles import gguf_vocabulary, vocabulary_in
from edgespec.shared.wire import Wire
from tests.faults.outside import until
from tests.faults.scene import Scene
from tests.support.links import GATEWAY_KEY, GatewayUnderTest, client, serving, worker_identity

COPIES = 40
SENT_S = 15.0
"""After the hostile tokenizer was sent: a worker that takes it is given a prompt, which ends llama.cpp's process."""
NORMAL = 1
UNKNOWN = 2
BYTE = 6
THIRD = "third"


def byteless_vocabulary() -> list[bytes]:
    """A SentencePiece model without tokens for most bytes: llama.cpp ends its process at a text that has another."""
    known = sorted({*b"A trial: 1 \xc3\xa9\xf0\x9f\x98\x80\n\n  \t<b>"})
    return [b"<unk>", *(f"<0x{byte:02X}>".encode() for byte in known), b"\xe2\x96\x81", b"t", b"h", b"th"]


def byteless_tokenizer(tokens: list[bytes]) -> bytes:
    """A file as a gateway sends it (docs/protocol.md)."""
    kinds = [UNKNOWN, *(BYTE if token.startswith(b"<0x") else NORMAL for token in tokens[1:])]
    scores = [-float(number) for number in range(len(tokens))]
    return msgspec.msgpack.encode(
        {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores, "unknown_token_id": 0}
    )


@dataclass(frozen=True, slots=True)
class Sent:
    """A tokenizer of one piece, sent as often as it is asked for: the offer, and the `Download` of its latest link."""

    file: bytes
    wires: list[Wire] = field(default_factory=list)
    sends: bool = True
    advice: str = "it can be fetched"

    def begin(self, worker: str, wire: Wire) -> Sent:
        """Sends to this link from now on."""
        self.wires.append(wire)
        return self

    def take(self, event: Event) -> None:
        """Sends the whole file."""
        self.wires[-1].send(m.Piece(hashlib.sha256(self.file).digest(), len(self.file), self.file))


def hostile_tokenizer(scene: Scene) -> None:
    """A third worker, paired with a hostile gateway, outlives its tokenizer, and goes on."""
    rig = scene.rig
    folder = rig.folder / "hostile"
    folder.mkdir(exist_ok=True)
    store = KeyStore(rig.folder / THIRD)
    me = worker_identity(name=THIRD, key=store.identity())
    with hostile_gateway(folder, me) as (gateway, loop):
        PairedGateways(store.folder).add(GATEWAY_KEY.public, gateway.pin.spki_hash, "gw", str(gateway.address), 1)
        config = rig._worker_config(THIRD)
        honest = rig._address(THIRD)
        config.write_text(config.read_text().replace(honest, f"wss://{gateway.address}"))
        cache = f"XDG_CACHE_HOME={rig.folder / 'third-cache'}"
        rig.start(THIRD, ["env", cache, *rig._worker(), "run", "--always", "--config", str(config)])
        until(lambda: "fetching it" in rig.log(THIRD) or not rig.runs(THIRD), 60, "the tokenizer is fetched")
        last = len(byteless_vocabulary()) - 1
        prompted = m.Open(1, 1, 4, [last, last - 2, last - 1, last - 3], m.Sampling())
        ends_at = time.monotonic() + SENT_S
        while time.monotonic() < ends_at and rig.runs(THIRD):
            for worker in gateway.links.workers():
                loop.call_soon_threadsafe(gateway.links.send, worker.id, [prompted])
            time.sleep(0.5)
        runs = rig.runs(THIRD)
        latest = rig.log(THIRD).splitlines()[-1]
        rig.stop(THIRD)
    assert runs, f"the worker ended with {rig.ended[THIRD]}: {latest}"
    assert "cannot draft for the target" in rig.log(THIRD), "its log does not say what it refuses"


@contextlib.contextmanager
def hostile_gateway(
    folder: Path, paired: WorkerIdentity
) -> Iterator[tuple[GatewayUnderTest, asyncio.AbstractEventLoop]]:
    """A gateway with this paired worker, on an event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    tokens = byteless_vocabulary()
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.model": "llama"}
    digest = vocabulary_in(metadata, folder).digest
    links = serving(folder, paired=[paired], tokenizer=digest, offer=Sent(byteless_tokenizer(tokens)))
    gateway = asyncio.run_coroutine_threadsafe(links.__aenter__(), loop).result(20)
    try:
        yield gateway, loop
    finally:
        asyncio.run_coroutine_threadsafe(links.__aexit__(None, None, None), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def copied_key(scene: Scene) -> None:
    """Forty links of one worker's key, as of machines of one image; gateway and worker say so."""
    store = KeyStore(scene.rig.folder / "second")
    (paired,) = PairedGateways(store.folder).all()
    copy = worker_identity(
        name="demo-second",
        key=store.identity(),
        tokenizer_digest=gguf_vocabulary(scene.draft).digest,
        vocab_size=len(gguf_vocabulary(scene.draft).entries),
        model_digest=os.urandom(32),
    )
    gateway = cast(GatewayUnderTest, PinnedPort(scene.rig.link_port, paired.pin))

    async def link_all() -> None:
        async with contextlib.AsyncExitStack() as links:
            for _ in range(COPIES):
                await links.enter_async_context(client(gateway, copy))

    asyncio.run(link_all())
    (problem,) = scene.rig.gateway_command("status", "--json")["problems"]
    assert "several processes link with its key" in problem and key_id(copy.key.public) in problem
    because = scene.rig.worker_command("status", "--json", worker="second")["refused_because"]
    assert because == "superseded", f"the worker's status says {because}"


class PinnedPort(msgspec.Struct, frozen=True):
    """The part that `client` reads of a gateway."""

    port: int
    pin: object
