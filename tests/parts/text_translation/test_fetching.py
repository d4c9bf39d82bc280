"""A worker with another tokenizer fetches the target's over a real link."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from cloud_gateway.links.link import Download
from cloud_gateway.parts.text_translation import offer as offer_module
from cloud_gateway.parts.text_translation.offer import FileOffer
from edgespec.core.errors import TokenizerMismatch
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import NO_TOKENIZER
from edgespec.llamacpp.drafter import Drafter
from edgespec.parts import text_translation
from edgespec.parts.text_translation import fetching, tokens
from edgespec.parts.text_translation.fetching import fetch_tokenizer
from edgespec.parts.text_translation.store import MAX_FETCHES, TokenizerStore
from edgespec.parts.text_translation.tokenizer_file import packed
from edgespec.shared.address import Address
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.shared.settings import overridden
from edgespec.shared.vocabfiles import gguf_metadata, gguf_vocabulary
from edgespec.shared.wire import Wire
from edgespec.worker import config, start
from edgespec.worker.service import Service
from tests.parts.text_translation.hostile_vocabularies import sentencepiece, without
from tests.support.links import GATEWAY_KEY, GatewayUnderTest, client, serving, worker_identity
from tests.support.services import listed
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.until import until

OWN = worker_identity(tokenizer_digest=b"\xab" * 32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "edgespec" / "tokenizers"


@asynccontextmanager
async def offering(tmp_path: Path, file: bytes = b"x" * 200_000) -> AsyncIterator[GatewayUnderTest]:
    async with serving(tmp_path, offer=FileOffer(file), paired=[OWN]) as gateway:
        yield gateway


def store() -> TokenizerStore:
    """The store of a worker that has just been started."""
    return TokenizerStore("worker", 1)


async def fetch(gateway: GatewayUnderTest) -> bytes:
    async def where() -> Sequence[Address]:
        return [gateway.address]

    return await asyncio.wait_for(fetch_tokenizer(where, OWN, gateway.pin, store(), lambda link: None), 30)


async def test_the_file_comes_in_pieces_once_and_is_kept(tmp_path: Path, cache: Path) -> None:
    file = bytes(range(256)) * 1000
    async with offering(tmp_path, file) as gateway:
        assert await fetch(gateway) == file
        assert gateway.links.workers() == [] and gateway.seen.of("up") == []
        (place,) = files(cache)
        offer_of(gateway)._began.clear()
        asked = offer_of(gateway).file = file[:10]  # the first piece names the file; no other is asked for
        assert await fetch(gateway) == file != asked
    assert store().kept(hashlib.sha256(file).digest()) == file
    damage(place)
    assert store().kept(hashlib.sha256(file).digest()) is None


def files(folder: Path) -> list[Path]:
    """The tokenizers, without the records of their fetches."""
    return [path for path in folder.glob("*") if path.suffix != ".json"]


def damage(place: Path) -> None:
    place.write_bytes(b"damaged")


def lies_about_the_hash(piece: m.Piece) -> m.Piece:
    return m.Piece(b"z" * 32, piece.size, piece.data)


def says_too_little(piece: m.Piece) -> m.Piece:
    return m.Piece(piece.digest, 70_000, piece.data)


def changes_its_mind(piece: m.Piece, seen: list[int] = []) -> m.Piece:  # noqa: B006  counts over all calls
    seen.append(1)
    return m.Piece(piece.digest, piece.size + len(seen), piece.data)


@pytest.mark.claim("a-tokenizer-off-the-wire-is-bounded-and-hashed")
@pytest.mark.parametrize("lie", [lies_about_the_hash, says_too_little, changes_its_mind])
async def test_a_wrong_file_is_refused_and_not_kept(
    tmp_path: Path,
    cache: Path,
    lie: Callable[[m.Piece], m.Piece],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    true = FileOffer.piece
    monkeypatch.setattr(FileOffer, "piece", lambda self, sent, event: lie(true(self, sent, event)))
    async with offering(tmp_path) as gateway:
        fetching = asyncio.ensure_future(fetch(gateway))
        await until(lambda: "(malformed)" in caplog.text, timeout_s=20)
        assert not fetching.done()
        fetching.cancel()
        with suppress(asyncio.CancelledError):
            await fetching
    assert not files(cache)


@pytest.mark.claim("a-tokenizer-off-the-wire-is-bounded-and-hashed")
@pytest.mark.parametrize(
    "bodies", [[m.Fetch(1)], [m.Fetch(0), m.Fetch(0)], [m.Fetch(0), m.Resume()], [m.StepTimes([1], [5])]]
)
async def test_a_worker_that_fetches_gets_each_byte_once(tmp_path: Path, bodies: list[m.WorkerBody]) -> None:
    async with offering(tmp_path) as gateway:
        async with client(gateway, worker_identity(tokenizer_digest=NO_TOKENIZER)) as hostile:
            for body in bodies:
                await hostile.send(body)
            assert await hostile.closed() == 4400
        async with client(gateway) as linked:
            await linked.send(m.Fetch(0))
            assert await linked.closed() == 4400
    assert gateway.links.rejected["unexpected"] == 2


async def test_a_key_begins_to_fetch_once_in_ten_seconds(tmp_path: Path) -> None:
    async with offering(tmp_path, b"file") as gateway:
        assert await fetch(gateway) == b"file"
        offer_of(gateway)._began = dict.fromkeys(offer_of(gateway)._began, asyncio.get_running_loop().time())
        with suppress(ConnectionClosed):
            async with client(gateway, replace(OWN, tokenizer_digest=NO_TOKENIZER)) as again:
                assert await again.closed() == 1013
    assert gateway.links.rejected["busy"] == 1


async def test_a_gateway_without_a_file_says_so(tmp_path: Path) -> None:
    async with offering(tmp_path, b"") as gateway:
        with pytest.raises(TokenizerMismatch, match="not in a GGUF file"):
            await fetch(gateway)


@asynccontextmanager
async def translating(gateway: GatewayUnderTest, folder: Path, store: KeyStore) -> AsyncIterator[Service]:
    """A worker with the tiny draft model, paired with this gateway."""
    model = make_tiny_gguf(folder / "tiny.gguf")
    PairedGateways(store.folder).add(GATEWAY_KEY.public, gateway.pin.spki_hash, "gw", str(gateway.address), 1)
    daemon = config.DaemonSection(name="w", state_dir=str(folder / "state"))
    schema = config.schema([text_translation.PART])
    settings = schema(daemon=daemon)
    settings = overridden(settings, {"draft.model": str(model)})
    service = Service(settings, lambda _: Drafter(model, context=1024, sequences=16), settings.parts)
    task = asyncio.ensure_future(start.run(settings, make=lambda *_: service))
    try:
        yield service
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        service.daemon.stop()


async def test_a_worker_of_another_tokenizer_drafts_by_what_it_fetched(tmp_path: Path) -> None:
    target = make_tiny_gguf(tmp_path / "target.gguf", vocab=90)
    keys = KeyStore(tmp_path / "state")
    found = gguf_vocabulary(target)
    file = packed(gguf_metadata(target))
    async with (
        serving(tmp_path, paired=[listed(keys)], tokenizer=found.digest, offer=FileOffer(file)) as gateway,
        translating(gateway, tmp_path, keys),
    ):
        await until(gateway.links.workers, timeout_s=60)
        (worker,) = gateway.links.workers()
        assert (worker.hello.tokenizer_digest, worker.hello.vocab_size) == (found.digest, 90)
        gateway.links.send(worker.id, [m.Open(1, 1, 5, [5, 6, 3, 7, 8], m.Sampling())])
        await until(lambda: gateway.seen.of("tree"), timeout_s=60)


def notice(service: Service) -> str:
    """The refusal that `edgespec status` shows; empty if there is none."""
    return service._notices.current()["refused"] or ""


@pytest.fixture
def fetching_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker tries again at once, and a gateway sends its tokenizer as often as it is asked."""
    monkeypatch.setattr(tokens, "AGAIN_S", 0.2)
    monkeypatch.setattr(offer_module, "EVERY_S", 0.0)


def offer_of(gateway: GatewayUnderTest) -> FileOffer:
    """The gateway's part of it."""
    offered = gateway.links._offer
    assert isinstance(offered, FileOffer)
    return offered


def offer(gateway: GatewayUnderTest, file: bytes) -> None:
    """From now on the gateway sends this file, as often as it is asked."""
    offer_of(gateway).file = file
    offer_of(gateway).digest = hashlib.sha256(file).digest()
    offer_of(gateway)._began.clear()


@pytest.mark.usefixtures("fetching_without_pauses")
@pytest.mark.claim("a-gateways-tokenizer-ends-no-worker")
async def test_a_refused_tokenizer_ends_no_worker_and_is_tried_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_tiny_gguf(tmp_path / "target.gguf", vocab=90)
    keys = KeyStore(tmp_path / "state")
    digest = gguf_vocabulary(target).digest
    hostile = without(sentencepiece(), b"<0xE2>")
    pieces = list[int]()
    trials = list[int]()
    true = FileOffer.piece
    tried = fetching.translation_by
    monkeypatch.setattr(FileOffer, "piece", lambda self, sent, event: (pieces.append(sent), true(self, sent, event))[1])
    monkeypatch.setattr(fetching, "translation_by", lambda data, *draft: (trials.append(1), tried(data, *draft))[1])

    async with (
        serving(tmp_path, paired=[listed(keys)], tokenizer=digest, offer=FileOffer(hostile)) as gateway,
        translating(gateway, tmp_path, keys) as service,
    ):
        await until(lambda: "no token for the byte 0xe2" in notice(service), timeout_s=60)
        first = len(pieces)
        await until(lambda: len(pieces) >= first + 3, timeout_s=60)
        assert len(trials) == 1
        assert (await service._status())["refused"] == notice(service)
        assert "The draft model cannot draft for the target of gateway gw" in notice(service)

        offer(gateway, packed(gguf_metadata(target)))
        await until(gateway.links.workers, timeout_s=60)
        await until(lambda: service._notices.current()["refused"] is None, timeout_s=10)


@pytest.mark.usefixtures("fetching_without_pauses")
@pytest.mark.claim("a-gateways-tokenizer-ends-no-worker")
async def test_a_gateway_that_refuses_what_it_sends_is_fetched_from_rarely(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tokenizer at each fetch; each is accepted, and then the link is refused."""
    keys = KeyStore(tmp_path / "state")
    sent = list[bytes]()
    true = FileOffer.begin

    def begins(self: FileOffer, worker: str, wire: Wire) -> Download:
        sent.append(sentencepiece(extra=[f"entry{len(sent)}".encode()], kind=1))
        self.file = sent[-1]
        self.digest = hashlib.sha256(sent[-1]).digest()
        return true(self, worker, wire)

    monkeypatch.setattr(FileOffer, "begin", begins)
    async with (
        serving(tmp_path, paired=[listed(keys)], tokenizer=b"\xee" * 32, offer=FileOffer(b"file")) as gateway,
        translating(gateway, tmp_path, keys) as service,
    ):
        await until(lambda: f"{MAX_FETCHES} other tokenizers within an hour" in notice(service), timeout_s=120)
        links = len(sent)
        assert links == MAX_FETCHES + 1
        await until(lambda: len(sent) >= links + 3, timeout_s=60)
        assert gateway.links.workers() == []
        assert [path.read_bytes() for path in files(cache)] == [sent[MAX_FETCHES - 1]]
