"""Quarantine over real sockets: from the verdict to the worker's sentence, over a restart, and its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.server import Links
from cloud_gateway.parts import all_parts
from cloud_gateway.parts.conduct import ConductSection, make_judge
from cloud_gateway.parts.conduct.judging import MAX_FAULTS, Conduct
from cloud_gateway.process.config import schema
from edgespec.core.protocol.handshake import CloseCode, Notice
from edgespec.core.protocol.names import key_id
from edgespec.shared.address import Address
from edgespec.shared.settings import parse
from edgespec.worker.link import keep_linked
from tests.support.links import Daemon, GatewayUnderTest, client, serving, worker_identity
from tests.support.sockets import reserved
from tests.support.until import until

ME = worker_identity()
ID = key_id(ME.key.public)


def worthless(links: Links) -> None:
    """Three requests of each of three keys, in which the worker claimed 8 acceptances and had none."""
    for number in range(9):
        links.audited(ID, f"key {number % 3}", 8.0, 0)


@pytest.fixture
def paired(tmp_path: Path) -> PairedWorkers:
    """The operator's list of workers, on disk."""
    return PairedWorkers(tmp_path / "keys")


@pytest.fixture
def port() -> Iterator[int]:
    """Long enough for a gateway that restarts."""
    with reserved() as number:
        yield number


@pytest.mark.claim("a-worthless-worker-is-refused-until-it-is-released")
async def test_a_worthless_worker_is_refused_until_it_is_released(
    tmp_path: Path, paired: PairedWorkers, port: int
) -> None:
    paired.add(ME.key.public, "lab-7")
    daemon = Daemon()
    notices = list[Notice]()
    found = list[tuple[str, ...]]()
    quarantined = found.append
    judged = serving(
        tmp_path, listed=paired, judges=[Conduct()], quarantined=lambda *what: quarantined(what), port=port
    )
    async with judged as before:
        task = asyncio.create_task(linking(before, daemon, notices))
        await until(before.links.workers)
        worthless(before.links)
        why = "3 of 3 API keys accepted 0% of what its probabilities claim"
        assert before.links.workers() == [] and found == [(ID, "lab-7", why)]
    restarted = serving(tmp_path, listed=PairedWorkers(tmp_path / "keys"), port=port)
    async with restarted as after:
        await until(lambda: after.links.rejected["quarantined"] > 1 and notices)
        assert f"cloud-gateway workers release {ID}" in notices[0].text and notices[0].reason == "quarantined"
        assert not after.links.workers() and daemon.of("up") == [()]
        paired.release("lab-7")  # by another process
        await until(after.links.workers)
        task.cancel()


async def linking(gateway: GatewayUnderTest, daemon: Daemon, notices: list[Notice]) -> None:
    async def addresses() -> Sequence[Address]:
        return [gateway.address]

    async def soon(seconds: float) -> None:
        await asyncio.sleep(0.02)

    await keep_linked(addresses, ME, gateway.pin, daemon, rng=random.Random(1), sleep=soon, noticed=notices.append)


@pytest.mark.claim("a-worthless-worker-is-refused-until-it-is-released")
async def test_six_faults_end_in_quarantine_with_a_signed_goodbye(tmp_path: Path) -> None:
    async with serving(tmp_path, judges=[Conduct()]) as gateway:
        for _ in range(MAX_FAULTS):
            async with client(gateway) as linked:
                await linked.ws.send(b"x" * 100)
                assert await linked.closed() == CloseCode.PROTOCOL
        with pytest.raises(ConnectionClosed, match="4423"):
            async with client(gateway):
                pass
        assert gateway.standing[ME.key.public] == "quarantined"


async def test_without_a_judge_neither_drafts_nor_faults_quarantine(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        worthless(gateway.links)
        for _ in range(MAX_FAULTS):
            async with client(gateway) as linked:
                await linked.ws.send(b"x" * 100)
                await linked.closed()
        assert gateway.standing[ME.key.public] == "paired"


def test_the_setting_says_how_many_keys_must_agree() -> None:
    settings = schema(all_parts())()
    assert settings.of(ConductSection).quarantine_keys == 3
    one_key = parse("[link]\nquarantine_keys = 1", schema(all_parts()), "x.toml")
    assert make_judge(one_key).drafted(ID, "key", 8.0, 0, 0.0) is None
    judge = make_judge(one_key)
    assert [judge.drafted(ID, "key", 8.0, 0, 0.0) is None for _ in range(3)] == [True, True, False]
