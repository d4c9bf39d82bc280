"""Links while the operator's list of workers is away: those that stand go on, and nobody is sent away for good."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.protocol.handshake import Notice
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.session import DEFAULT_TIMERS
from edgespec.shared.address import Address
from edgespec.worker.link import keep_linked
from tests.support.links import Client, Daemon, GatewayUnderTest, client, serving, some_tree, worker_identity
from tests.support.until import until

ME = worker_identity()
ID = key_id(ME.key.public)
SOON = replace(DEFAULT_TIMERS, ping_every_s=0.05)
"""A worker's standing is looked up after each round trip."""


async def link_again_and_again(gateway: GatewayUnderTest, daemon: Daemon, notices: list[Notice]) -> None:
    async def addresses() -> Sequence[Address]:
        return [gateway.address]

    async def soon(seconds: float) -> None:
        await asyncio.sleep(0.02)

    await keep_linked(addresses, ME, gateway.pin, daemon, rng=random.Random(1), sleep=soon, noticed=notices.append)


async def answers_pings(linked: Client, count: int) -> None:
    """So many round trips, after each of which the gateway looks the worker up."""
    seen = 0
    while seen < count:
        await linked.receive()
        seen += 1


@pytest.mark.claim("a-list-that-is-away-unpairs-nobody")
async def test_a_link_outlives_the_absence_of_the_list(
    tmp_path: Path, paired: PairedWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    paired.add(ME.key.public, "lab-7")
    keys = tmp_path / "keys"
    async with serving(tmp_path, listed=paired, timers=SOON) as gateway, client(gateway) as linked:
        await until(gateway.links.workers)
        keys.rename(tmp_path / "away")
        async with asyncio.timeout(20):
            await answers_pings(linked, 4)
        assert gateway.links.workers() and not gateway.links.rejected
        assert "the standing of workers cannot be read" in caplog.text
        (problem,) = gateway.links.problems()
        assert "no worker can link" in problem and "mount or restore" in problem

        (tmp_path / "away").rename(keys)
        await linked.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))
        assert gateway.links.problems() == []
        assert gateway.seen.of("down") == []


@pytest.mark.claim("a-list-that-is-away-unpairs-nobody")
async def test_a_worker_that_comes_while_the_list_is_away_links_afterwards(
    tmp_path: Path, paired: PairedWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    paired.add(ME.key.public, "lab-7")
    keys = tmp_path / "keys"
    notices: list[Notice] = []
    async with serving(tmp_path, listed=paired) as gateway:
        keys.rename(tmp_path / "away")
        with caplog.at_level(logging.INFO):
            dialling = asyncio.create_task(link_again_and_again(gateway, Daemon(), notices))
            await until(lambda: "the standing of workers cannot be read" in caplog.text)
        assert not keys.exists()
        (tmp_path / "away").rename(keys)
        await until(gateway.links.workers)
        assert notices == [] and not dialling.done()
        dialling.cancel()


@pytest.mark.claim("a-list-that-is-away-unpairs-nobody")
async def test_a_worker_that_the_list_does_not_name_goes_on_trying(
    tmp_path: Path, paired: PairedWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    """A list from a backup that is older than the pairing, until a newer one is restored."""
    notices: list[Notice] = []
    async with serving(tmp_path, listed=paired) as gateway:
        dialling = asyncio.create_task(link_again_and_again(gateway, Daemon(), notices))
        await until(lambda: gateway.links.rejected["unpaired"] > 1 and notices)
        assert notices[0].reason == "unpaired" and ID in notices[0].text and "edgespec pair" in notices[0].text
        assert notices[0].text in caplog.text
        assert not gateway.links.workers() and not dialling.done()
        PairedWorkers(tmp_path / "keys").add(ME.key.public, "lab-7")
        await until(gateway.links.workers)
        dialling.cancel()
