"""The gateway's end of links: which workers are linked, what the engine receives and sends, and what peers and floods
of connections can cost.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cloud_gateway.core.limits import probation
from cloud_gateway.links.server import link_bounds
from edgespec.core.errors import AddressError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import NONCE_BYTES
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.session import Linked, Timers
from edgespec.core.protocol.worth import WorkerFigures
from edgespec.shared.address import BOOKS, FEATURES, REQUESTS, TIMES
from edgespec.shared.tls import client_context
from tests.support.links import (
    HASH,
    Client,
    Watched,
    client,
    make_certificate,
    raw,
    serving,
    some_tree,
    worker_identity,
)
from tests.support.sockets import dial
from tests.support.until import until

ME = worker_identity()
ID = key_id(ME.key.public)
OPEN = m.Open(1, 1, 3, [1, 2, 3], m.Sampling())
COMMIT = m.Commit(1, 1, 3, [5], HASH)


async def next_message(linked: Client) -> m.Message:
    while True:
        for event in await linked.receive():
            if not isinstance(event, Linked):
                return event


async def test_a_worker_is_linked_and_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        await until(gateway.links.workers)
        (worker,) = gateway.links.workers()
        assert (worker.id, worker.name, worker.session) == (ID, "lab-7", linked.session.session)
        assert worker.hello.sequences == 4 and not worker.paused
        assert gateway.seen.calls == [("up", ID)]
        assert gateway.links.linked()[ID].rtt_s == worker.rtt_s > 0  # the handshake was the first sample


async def test_requests_reach_the_worker_in_order_and_its_trees_the_engine(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        await until(gateway.links.workers)
        for body in (OPEN, COMMIT, m.Close(1, 1, "done")):
            gateway.links.send(ID, [body])
        for body in (OPEN, COMMIT, m.Close(1, 1, "done")):
            assert await next_message(linked) == body
        await linked.send(some_tree())
        await linked.send(some_tree(3, parents=[2, 3]))
        await until(lambda: len(gateway.seen.of("tree")) == 2)
        assert [tree.first for _, tree in gateway.seen.of("tree")] == [1, 3]
        assert gateway.links.traffic["sent"] >= 3 * 512 and gateway.links.traffic["received"] >= 2 * 512


async def test_a_worker_takes_as_many_requests_as_its_upgrade_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        async with client(gateway):
            await until(gateway.links.workers)
            view = gateway.links.linked()[ID]
            assert not view.requests, "it does not say"
        await until(lambda: not gateway.links.workers())
        async with client(gateway, additional_headers={FEATURES: f"{REQUESTS}12"}) as linked:
            await until(gateway.links.workers)
            view = gateway.links.linked()[ID]
            assert view.requests == 12
            gateway.links.send(ID, [m.Share(1, 1, 1, 2)])
            assert await next_message(linked) == m.Share(1, 1, 1, 2)


async def test_the_step_times_that_a_worker_reports_replace_each_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        await until(gateway.links.workers)
        assert gateway.links.linked()[ID].draft_points == ()
        for micros in (6000, 9000):
            await linked.send(m.StepTimes([1, 4], [micros, 2 * micros]))
        await until(lambda: gateway.links.linked()[ID].draft_points == ((1, 0.009), (4, 0.018)))


async def test_pause_resume_and_decline_are_passed_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        await linked.send(m.Pause("the owner is back"))
        await until(lambda: gateway.seen.of("down") == [(ID, "the owner is back")])
        assert gateway.links.linked()[ID].paused
        await linked.send(m.Resume())
        await linked.send(m.Decline(1, 1, "too long"))
        await until(lambda: gateway.seen.of("decline"))
        assert not gateway.links.linked()[ID].paused
        assert [call[0] for call in gateway.seen.calls] == ["up", "down", "up", "decline"]


@pytest.mark.driven
async def test_the_step_time_is_estimated_from_the_spacing_of_trees(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        loop = asyncio.get_running_loop()
        sent_at = []
        for i in range(30):
            await linked.send(some_tree(1 + 2 * i))
            sent_at.append(loop.time())
            await asyncio.sleep(0.02)
        (worker,) = gateway.links.workers()
        assert 0.5 < 2 * worker.step_s / ((sent_at[-1] - sent_at[0]) / 29) < 2, "each frame has two levels"


async def test_a_goodbye_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        await linked.send(m.Bye("stopping"))
        assert await linked.closed() == 1000
        assert gateway.seen.calls == [("up", ID), ("down", ID, "bye: stopping")]
        assert not gateway.links.rejected and caplog.text == ""


async def test_a_worker_that_vanishes_is_gone_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        linked.ws.transport.abort()
        await until(lambda: gateway.seen.of("down"))
        assert gateway.seen.of("down") == [(ID, "connection lost")]
        gateway.links.send(ID, [COMMIT])  # nobody there: dropped


async def test_a_newer_session_of_the_same_worker_ends_the_older_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as older, client(gateway) as newer:
        assert await older.closed() == 4409
        assert gateway.seen.calls[:3] == [("up", ID), ("down", ID, "superseded"), ("up", ID)]
        await newer.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))
        (worker,) = gateway.links.workers()
        assert worker.session == newer.session.session


@pytest.mark.claim("a-hello-without-a-proof-does-not-end-the-link-of-its-owner")
async def test_a_hello_without_a_proof_does_not_end_the_link_of_its_owner(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked, raw(gateway) as ws:
        await ws.send(m.encode(m.Hello(m.PROTOCOL, ME.key.public, bytes(NONCE_BYTES), b"t" * 32, b"m" * 32, 1, 1, "x")))
        await ws.recv()
        await ws.send(m.encode(m.Proof(bytes(64))))
        with pytest.raises(ConnectionClosed):
            await ws.recv()
        await linked.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))
        assert gateway.seen.of("down") == []


async def test_stopping_says_goodbye(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        await until(gateway.links.workers)
        stop = asyncio.create_task(gateway.links.stop())
        assert await next_message(linked) == m.Bye("stopping")
        assert await linked.closed() in (1000, 1012)
        await stop
        assert gateway.seen.of("down") == [(ID, "stopping")]


# --- bounds ------------------------------------------------------------------------------------------------------


async def test_small_frames_leave_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway):
        (worker,) = gateway.links.workers()
        sock = worker.wire.ws.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.claim("a-worker-that-does-not-read-is-closed-with-1013")
async def test_a_worker_that_does_not_read_is_closed_with_1013(tmp_path: Path) -> None:
    timers = Timers(ping_every_s=0.2, unread_s=0.5)
    async with serving(tmp_path, timers=timers) as gateway, client(gateway) as linked:
        linked.ws.transport.pause_reading()
        for i in range(40):
            if gateway.seen.of("down"):
                break
            await linked.send(some_tree(1 + 2 * i))
            await asyncio.sleep(0.05)
        assert gateway.seen.of("down") == [(ID, "slow")]
        linked.ws.transport.resume_reading()
        assert await linked.closed() == 1013


@pytest.mark.claim("a-worker-that-does-not-read-is-closed-with-1013")
async def test_what_is_written_to_a_worker_that_does_not_read_is_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        linked.ws.transport.pause_reading()
        big = m.Open(1, 1, 8192, [100_000] * 8192, m.Sampling())
        (worker,) = gateway.links.workers()
        sizes = list[int]()
        write = worker.wire._write

        def counted(data: bytes) -> None:
            sizes.append(len(data))
            write(data)

        worker.wire._write = counted  # type: ignore[method-assign]
        for _ in range(400):
            gateway.links.send(ID, [big])
            await asyncio.sleep(0)
        assert gateway.seen.of("down") == [(ID, "slow")]
        assert 1 << 20 < sum(sizes) < 24 << 20


async def test_an_event_shows_in_a_links_figures_before_the_engine_gets_it(tmp_path: Path) -> None:
    seen = Watched()
    async with serving(tmp_path, seen=seen) as gateway:
        seen.links = gateway.links
        async with client(gateway) as connected:
            await connected.send(m.Pause("busy"))
            await connected.send(m.Resume())
            await until(lambda: len(seen.paused) == 3)
            assert seen.paused == [False, True, False]
        await until(lambda: gateway.links.view(ID) is None)


@pytest.mark.claim("a-worker-that-was-cut-off-for-its-fault-is-on-probation")
async def test_a_worker_that_was_cut_off_for_its_fault_is_on_probation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probation, "FIRST_S", 0.3)
    seen = Watched()
    async with serving(tmp_path, seen=seen) as gateway:
        seen.links = gateway.links
        async with client(gateway) as linked:
            await linked.ws.send(b"x" * 100)
            await linked.closed()
        async with client(gateway):
            await until(lambda: len(seen.of("up")) == 3)
    assert seen.paused == [False, True, False], "when linked, when linked again, and after the time"


async def test_nothing_of_a_link_that_ended_during_its_probation_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probation, "FIRST_S", 600.0)  # not over before the test is
    async with serving(tmp_path) as gateway:
        for probation_expected in (False, True):
            async with client(gateway) as linked:
                await until(gateway.links.workers)
                kept = weakref.ref(gateway.links.workers()[0].wire.ws)
                assert gateway.links.linked()[ID].paused is probation_expected
                await linked.ws.send(b"x" * 100)
                await linked.closed()
            await until(lambda: not gateway.links.workers())
        await until(lambda: (gc.collect(), kept() is None)[1])


@pytest.mark.claim("a-silent-worker-is-given-up")
async def test_a_silent_worker_is_given_up(tmp_path: Path) -> None:
    timers = Timers(ping_every_s=0.05, unread_s=0.2, silent_s=0.3)
    async with serving(tmp_path, timers=timers) as gateway, client(gateway) as linked:
        assert await linked.closed() == 4408
        assert gateway.seen.of("down") == [(ID, "silent")]


@pytest.mark.claim("a-fault-of-ours-ends-only-the-link-where-it-happened")
async def test_a_fault_of_ours_ends_only_the_link_where_it_happened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = worker_identity(b"o" * 32, "other")
    async with serving(tmp_path, paired=[other]) as gateway, client(gateway) as one, client(gateway, other) as two:
        gateway.seen.tree_raises = KeyError("a bug")
        await one.send(some_tree())
        assert await one.closed() == 1011
        assert gateway.seen.of("down") == [(ID, "internal")] and not gateway.links.rejected
        assert "fault of this gateway" in caplog.text
        gateway.seen.tree_raises = None
        await two.send(some_tree())
        await until(lambda: len(gateway.seen.of("tree")) == 2)


# --- the port ----------------------------------------------------------------------------------------------------


async def test_other_paths_are_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        for path in ("/", "/pair", "/link/", "/link?x=1", "/metrics"):
            with pytest.raises(InvalidStatus) as caught:
                async with raw(gateway, path):
                    pass
            assert caught.value.response.status_code == 404


async def test_pairing_is_handed_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def pair(ws: ServerConnection) -> None:
        if await ws.recv() == b"raise":
            raise ValueError("a bug")
        await ws.send(b"paired")

    async with serving(tmp_path, pair=pair) as gateway:
        async with raw(gateway, "/pair") as one, raw(gateway, "/pair") as two:
            await one.send(b"hello")
            assert await one.recv() == b"paired"
            await two.send(b"raise")
            with pytest.raises(ConnectionClosed):
                await two.recv()
        assert "fault of this gateway" in caplog.text
        async with client(gateway):
            pass


async def test_a_pairing_that_ended_well_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def pair(ws: ServerConnection) -> None:
        await ws.send(b"paired")

    async with serving(tmp_path, pair=pair) as gateway, raw(gateway, "/pair") as paired:
        assert await paired.recv() == b"paired"
        with pytest.raises(ConnectionClosed) as closed:
            await paired.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
        assert not gateway.links.rejected
    assert "fault" not in caplog.text


@pytest.mark.parametrize("connections", [1, 2, 3, 1024])
def test_a_worker_can_link_however_few_connections_there_may_be(connections: int) -> None:
    assert 1 <= link_bounds(connections).unproven <= connections


async def test_a_port_in_use_is_said_in_one_sentence(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        context, _ = make_certificate(tmp_path)
        with pytest.raises(AddressError) as caught:
            await gateway.links.start("127.0.0.1", gateway.port, context)
        assert str(gateway.port) in str(caught.value) and "\n" not in str(caught.value)


async def test_a_gateway_stops_at_once_though_handshakes_stall(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with serving(tmp_path) as gateway:
            stack.enter_context(dial(gateway.port))
            await stack.enter_async_context(raw(gateway))
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=client_context())
            stack.callback(writer.close)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 5  # each of the handshakes may take 10 s


async def messages(linked: Client, count: int) -> list[m.AnyBody]:
    """The next messages that are neither pings nor their answers."""
    received: list[m.AnyBody] = []
    async with asyncio.timeout(10):
        while len(received) < count:
            for event in await linked.receive():
                if isinstance(event, m.Books | m.WorkerTimes | m.Close):
                    received.append(event)
    return received


async def test_a_worker_that_takes_its_figures_gets_them_again_when_it_links(tmp_path: Path) -> None:
    figures = WorkerFigures(tokens=100, accepted=40, verified=50, frames=9, late=1, spent_ms=900, alone_ms=1000)
    takes = {"additional_headers": [(FEATURES, BOOKS), (FEATURES, TIMES)]}
    async with serving(tmp_path) as gateway:
        async with client(gateway, **takes) as linked:
            await until(gateway.links.workers)
            gateway.links.account(ID, figures)
            assert await messages(linked, 2) == [figures.books, figures.times]
        async with client(gateway, **takes) as linked:
            assert await messages(linked, 2) == [figures.books, figures.times]


@pytest.mark.parametrize("features", [{}, {FEATURES: BOOKS}], ids=["none", "counts"])
async def test_an_older_worker_is_sent_no_figures_that_it_does_not_name(
    tmp_path: Path, features: dict[str, str]
) -> None:
    figures = WorkerFigures(tokens=100, accepted=40, verified=50, frames=9, late=1, spent_ms=900, alone_ms=1000)
    over = m.Close(1, 1, "over")
    async with serving(tmp_path) as gateway, client(gateway, additional_headers=features) as older:
        await until(gateway.links.workers)
        gateway.links.account(ID, figures)
        gateway.links.send(ID, [over])
        expected = [figures.books, over] if features else [over]
        assert await messages(older, len(expected)) == expected
