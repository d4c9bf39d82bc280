"""Several processes with one worker's key, as machines of one image: what is said, and how soon it passes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cloud_gateway.core.limits import probation
from cloud_gateway.core.limits.probation import CONTEST_PROBATION_S, CONTEST_S, MIN_TAKEOVERS, Contest
from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import notice_of
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.redial import CONTESTED_S, LONGEST_S, Redial
from edgespec.worker.notices import CONTEST_SHOWN_S, Notices
from tests.support.links import Client, client, serving, worker_identity
from tests.support.until import until

ME = worker_identity()
ID = key_id(ME.key.public)


def test_one_takeover_is_normal_and_three_within_a_minute_are_a_contest() -> None:
    contest = Contest()
    for number in range(MIN_TAKEOVERS - 1):
        contest.taken_over("w", "192.0.2.1", float(number))
        assert contest.addresses("w", float(number)) == []
    contest.taken_over("w", "192.0.2.7", 10.0)
    assert contest.addresses("w", 10.0) == ["192.0.2.1", "192.0.2.7"]
    assert contest.contested(10.0) == ["w"] and contest.contested(CONTEST_S + 10.0) == []
    contest.renamed("w", "v")
    assert contest.addresses("w", 10.0) == contest.addresses("v", 10.0) == []


def test_takeovers_far_apart_are_no_contest() -> None:
    contest = Contest()
    for number in range(100):
        now = number * CONTEST_S / (MIN_TAKEOVERS - 1)
        contest.taken_over("w", "192.0.2.1", now)
        assert contest.addresses("w", now) == []


async def answer_pings(linked: Client) -> None:
    while True:
        await linked.receive()


@pytest.mark.claim("copies-of-a-workers-key-keep-it-out-only-while-they-link")
@pytest.mark.driven
async def test_forty_copies_keep_a_worker_out_only_while_they_link(
    tmp_path: Path, paired: PairedWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    paired.add(ME.key.public, "lab-7")
    async with serving(tmp_path, listed=paired) as gateway, AsyncExitStack() as copies:
        for _ in range(40):
            await copies.enter_async_context(client(gateway))
        await until(lambda: len(gateway.seen.of("up")) == 40)
        (worker,) = gateway.links.workers()
        assert worker.paused and worker.probation_because == "several processes link with its key"
        (problem,) = gateway.links.problems()
        assert f"lab-7 ({ID}): several processes link with its key, from 127.0.0.1" in problem
        assert "stop the others, or remove the folder `keys`" in problem
        assert caplog.text.count(problem) == 1, "once a minute, not once a link"

        ended_at = loop.time()
        async with client(gateway) as last:  # the copies dial no more, and this one stays
            answering = asyncio.create_task(answer_pings(last))
            await until(lambda: not gateway.links.workers()[0].paused)
            assert CONTEST_PROBATION_S - 1 <= loop.time() - ended_at <= CONTEST_PROBATION_S + 1
            answering.cancel()


@pytest.mark.claim("a-worker-that-was-cut-off-for-its-fault-is-on-probation")
@pytest.mark.driven
async def test_copies_of_its_key_do_not_shorten_a_workers_probation(tmp_path: Path, paired: PairedWorkers) -> None:
    loop = asyncio.get_running_loop()
    paired.add(ME.key.public, "lab-7")
    async with serving(tmp_path, listed=paired) as gateway, AsyncExitStack() as copies:
        for _ in range(2):
            async with client(gateway) as faulty:
                await faulty.ws.send(b"x" * 100)
                await faulty.closed()
        faults_ended_at = loop.time()

        for _ in range(MIN_TAKEOVERS + 1):
            await copies.enter_async_context(client(gateway))
        async with client(gateway) as last:
            answering = asyncio.create_task(answer_pings(last))
            await until(lambda: not gateway.links.workers()[0].paused)
            assert loop.time() - faults_ended_at > 3 * CONTEST_PROBATION_S, "two faults cost about a minute"
            answering.cancel()


async def test_a_link_that_was_taken_over_costs_no_probation(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, AsyncExitStack() as links:
        for _ in range(MIN_TAKEOVERS):  # one fewer takeover than a contest
            await links.enter_async_context(client(gateway))
        await until(lambda: len(gateway.seen.of("up")) == MIN_TAKEOVERS)
        await gateway.links.workers()[0].wire.ws.close()
        await until(lambda: not gateway.links.workers())
        async with client(gateway):
            await until(gateway.links.workers)
            (worker,) = gateway.links.workers()
            assert not worker.paused, "only the last of its links has ended for a reason that counts"


@pytest.mark.claim("copies-of-a-workers-key-keep-it-out-only-while-they-link")
async def test_a_worker_whose_link_was_taken_over_shows_why(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as older, client(gateway):
        while not (received := await older.receive()):
            pass  # the answer to the handshake
        assert received == [m.Bye("superseded")]
    notice = notice_of(received[0].reason, ID)
    assert notice is not None
    for word in ("runs twice", "image of a machine", "remove the folder `keys`", "`edgespec pair`", ID):
        assert word in notice.text


def test_a_worker_dials_again_within_15_seconds_of_a_takeover() -> None:
    redial = Redial(lambda low, high: high)
    for _ in range(20):
        redial.wait_s(0.0)
    assert redial.wait_s(0.0) == LONGEST_S
    redial.contested()
    assert redial.wait_s(0.0) == CONTESTED_S
    assert CONTESTED_S <= CONTEST_PROBATION_S, "no link of a contested key gets requests between two takeovers"
    assert probation.MAX_TAKEOVERS >= MIN_TAKEOVERS


def test_a_new_link_ends_every_notice_but_that_of_a_contested_key() -> None:
    now = [0.0]
    notices = Notices(lambda: now[0])
    assert notices.current() == {"refused": None, "refused_because": None}
    for reason in ("quarantined", "unpaired", "superseded"):
        notice = notice_of(reason, ID)
        assert notice is not None
        notices.add(notice)
        assert notices.current() == {"refused": notice.text, "refused_because": reason}
        notices.linked()
        assert (notices.current()["refused"] is None) == (reason != "superseded")
    now[0] = CONTEST_SHOWN_S + 1
    assert notices.current()["refused"] is None
