"""One id and one name for each worker: in the log, in the list, in what the worker is sent, and in `revoke`."""

from __future__ import annotations

import asyncio
import logging
import random
import re

import pytest

from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.errors import PairingError, RemoteProtocolError
from edgespec.core.protocol.names import key_id
from edgespec.shared.address import Address
from edgespec.worker.link import keep_linked
from tests.support.links import Daemon, GatewayUnderTest, client, worker_identity
from tests.support.until import until

LIAR = worker_identity(name="lab-7 of Prof. X")
ID = key_id(LIAR.key.public)


@pytest.fixture
def paired(paired: PairedWorkers) -> PairedWorkers:
    paired.add(LIAR.key.public, "w2")
    return paired


@pytest.mark.claim("what-the-log-shows-of-a-culprit-can-be-pasted-into-revoke")
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


@pytest.mark.claim("what-the-log-shows-of-a-culprit-can-be-pasted-into-revoke")
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
