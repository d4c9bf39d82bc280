"""The whole worker process, with a draft model that only sleeps."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import cast

from edgespec.core.protocol.names import key_id
from edgespec.llamacpp.drafter import Drafter
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.worker import start
from edgespec.worker.config import DaemonSection, DraftSection, GatewaySection, OwnerSection, WorkerSettings
from edgespec.worker.service import Service
from tests.support.links import TOKENIZER, VOCAB, serving
from tests.support.until import until
from tools.sim.live.engines import SleepingDrafter
from tools.sim.live.setting import Setting

SETTING = Setting({1: 1.0}, {1: 0.1}, {"match": 0.8}, "", 40)


class Draft(SleepingDrafter):
    """Fits the gateway of the tests."""

    vocab_size = VOCAB

    def __init__(self) -> None:
        super().__init__(SETTING)
        self.tokenizer_digest = TOKENIZER


async def test_where_the_gateway_was_reached_is_kept_and_the_id_is_shown(tmp_path: Path) -> None:
    """The gateway has moved since pairing; the configured address works, and is not needed at the next start."""
    store = KeyStore(tmp_path / "state")
    gateways, me = PairedGateways(store.folder), store.identity()
    async with serving(tmp_path) as gateway:
        gateway.standing[me.public] = "paired"
        gateways.add(gateway.pin.gateway_key, gateway.pin.spki_hash, "gw", "127.0.0.1:9", 1)
        settings = WorkerSettings(
            draft=DraftSection(sequences=1),
            gateway=GatewaySection(address=str(gateway.address), discover=False),
            daemon=DaemonSection(name="lab-7", state_dir=str(tmp_path / "state"), priority="normal"),
            owner=OwnerSection(mode="always"),
        )
        service = Service(settings, lambda _: cast("Drafter", Draft()))
        running = asyncio.create_task(start.run(settings, make=lambda *_: service))
        await until(lambda: gateways.all()[0].address == str(gateway.address))
        status = await service._status()
        assert (status["linked"], status["id"]) == (True, key_id(me.public))
        assert gateway.links.workers()[0].id == key_id(me.public)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 10)
