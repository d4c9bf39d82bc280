"""One id and one name for each worker: in the log, in the list, in what the worker is sent, and in `revoke`."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_gateway.links.port import LinkLimits
from cloud_gateway.links.server import Links
from edgespec.core.errors import PairingError, RemoteProtocolError
from edgespec.core.protocol.handshake import GatewayIdentity, Pin
from edgespec.core.protocol.names import key_id
from edgespec.shared.address import Address
from edgespec.shared.paired import PairedWorkers
from edgespec.worker.link import keep_linked
from tests.support.links import (
    GATEWAY_KEY,
    TOKENIZER,
    VOCAB,
    Daemon,
    GatewayUnderTest,
    Seen,
    client,
    make_certificate,
    worker_identity,
)
from tests.support.until import until
from tools.doubles.limits import link_limits

LIAR = worker_identity(name="lab-7 of Prof. X")
ID = key_id(LIAR.key.public)


@pytest.fixture
def paired(tmp_path: Path) -> PairedWorkers:
    workers = PairedWorkers(tmp_path / "keys")
    workers.add(LIAR.key.public, "w2")
    return workers


@pytest.fixture
async def gateway(tmp_path: Path, paired: PairedWorkers) -> AsyncIterator[GatewayUnderTest]:
    """Links that use the operator's own list."""
    context, pin = make_certificate(tmp_path)
    seen = Seen()
    me = GatewayIdentity(GATEWAY_KEY, "gw", pin, TOKENIZER)
    links = Links(me, VOCAB, paired, seen.refused, limits=LinkLimits(link_limits()))
    links.inbox = seen
    port = await links.start("127.0.0.1", 0, context)
    yield GatewayUnderTest(links, seen, port, Pin(GATEWAY_KEY.public, pin), {}, context)
    await links.stop()


async def test_what_the_log_shows_of_a_culprit_can_be_pasted_into_revoke(
    gateway: GatewayUnderTest, paired: PairedWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    paired.add(b"x" * 32, ID[:4])  # another worker, called like the beginning of the culprit's id
    with caplog.at_level(logging.INFO):
        async with client(gateway, LIAR) as hand:
            await until(gateway.links.workers)
            gateway.links.punish(gateway.links.workers()[0].id, RemoteProtocolError("shape-depth", "17 levels"), 1)
            await hand.closed()
    refused = [line for line in caplog.messages if "refused" in line]
    assert len(refused) == 1 and "Prof. X" not in caplog.text
    shown = re.match(r"worker (.* \(([0-9a-f]+)\)) refused: shape-depth", refused[0])
    assert shown is not None and shown[1] == f"w2 ({ID})"
    for pasted in (shown[1], shown[2], shown[2][:4]):
        assert paired.revoke(pasted).key == LIAR.key.public
    assert paired.lookup(LIAR.key.public) == "revoked"


@pytest.mark.parametrize("linked", [True, False])
async def test_a_revoked_worker_is_sent_the_id_that_the_list_shows(
    gateway: GatewayUnderTest, paired: PairedWorkers, linked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def where() -> list[Address]:
        return [gateway.address]

    if not linked:
        paired.revoke(ID)
    task = asyncio.create_task(keep_linked(where, LIAR, gateway.pin, Daemon(), rng=random.Random(1)))
    if linked:
        await until(gateway.links.workers)
        gateway.links.revoke(paired.revoke(ID).key)
    with pytest.raises(PairingError, match=f"{ID}.*revoked"):
        await asyncio.wait_for(task, 5)
    assert any(ID in line and "revoked" in line for line in caplog.messages)
