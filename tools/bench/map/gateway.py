"""The gateway's process of a live cell: `python -m tools.bench.map.gateway SETTING STATE`.

Engine, links, keys and TLS are the product's. Each line of standard input names how many clients begin together and how
many tokens of each pass and count; a line of figures answers it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import msgspec

from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation, TokensEvent
from cloud_gateway.engine.exchange import Stream
from cloud_gateway.engine.loop import Engine
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.port import LinkLimits
from cloud_gateway.links.server import Links
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from edgespec.core.protocol.handshake import GatewayIdentity
from edgespec.lab.rig import waited_s
from edgespec.shared.server_keys import ServerKeyStore
from tools.doubles.limits import link_limits
from tools.sim.live.engines import SleepingDraft, SleepingTarget
from tools.sim.live.gateway import LINK_S
from tools.sim.live.setting import VOCABULARY, Setting, read


class Load(msgspec.Struct, frozen=True):
    """What is asked for."""

    clients: int
    skipped: int
    counted: int
    workers: bool


class Gateway:
    """Engine and links of one arm. Lives on the event loop."""

    def __init__(self, setting: Setting, state: Path) -> None:
        self._setting, store = setting, ServerKeyStore(state)
        self._tls = store.tls_identity()
        me = GatewayIdentity(store.identity(), "map", self._tls.spki_hash, setting.digest)
        paired = PairedWorkers(store.folder)
        self._links = Links(me, VOCABULARY, paired, lambda reason: None, limits=LinkLimits(link_limits()))
        self._target = SleepingTarget(setting)
        self._engine = self._links.inbox = Engine(
            self._target, SleepingDraft(setting), engine_settings(GatewaySettings(policy=setting.policy)), self._links,
            curve={rows: ms / 1e3 for rows, ms in setting.verify_ms.items()},
        )  # fmt: skip
        self._tokens = self._wanted = 0
        self._reached = asyncio.Event()

    async def serve(self) -> None:
        """Measures until standard input ends."""
        self._engine.start()
        _say({"port": await self._links.start("127.0.0.1", 0, self._tls.context())})
        try:
            while line := await asyncio.to_thread(sys.stdin.readline):
                _say(await self._measure(msgspec.json.decode(line, type=Load)))
        finally:
            await self._links.stop()
            await asyncio.to_thread(self._engine.stop)

    async def _measure(self, load: Load) -> dict[str, float]:
        async with asyncio.timeout(LINK_S):
            while load.workers and len(self._links.linked()) < self._setting.workers:  # noqa: ASYNC110 - as in a replay
                await asyncio.sleep(0.05)
        engine, setting = self._engine, self._setting
        speculation = Speculation(offload="auto" if load.workers else "never")
        streams = [
            engine.submit(
                GenerationRequest(setting.prompt(seed), setting.length, ignore_eos=True, speculation=speculation)
            )
            for seed in range(load.clients)
        ]
        readers = [asyncio.ensure_future(self._read(seed, stream)) for seed, stream in enumerate(streams)]
        before = await self._reading(load.skipped * load.clients)
        after = await self._reading((load.skipped + load.counted) * load.clients)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*readers)
        more = {name: after[name] - before[name] for name in after}
        return {**more, "late_us": self._target.sleeper.summary().get("p90_us", 0.0)}

    async def _reading(self, tokens: int) -> dict[str, float]:
        self._wanted = tokens
        while self._tokens < tokens:
            self._reached.clear()
            await self._reached.wait()
        stats = self._engine.stats
        return {
            "tokens": self._tokens, "seconds": time.perf_counter(), "passes": stats.rounds,
            "draft_passes": stats.local_passes, "rows": self._target.rows, "host_s": stats.host_s,
            "waited_s": waited_s([os.getpid()]), "cpu_s": time.process_time(),
        }  # fmt: skip

    async def _read(self, seed: int, stream: Stream) -> None:
        """Counts a client's tokens. Raises RuntimeError where they are not the process's."""
        wanted, position = self._setting.process(seed).targets, 1
        async for event in stream:
            if isinstance(event, TokensEvent):
                if list(wanted[position : position + len(event.tokens)]) != list(event.tokens):
                    raise RuntimeError(f"client {seed} got other tokens than the target says")
                position += len(event.tokens)
                self._tokens += len(event.tokens)
                if self._tokens >= self._wanted:
                    self._reached.set()
            elif isinstance(event, DoneEvent) and event.error:
                raise RuntimeError(event.error)


def _say(value: object) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


async def main(setting: Setting, state: Path) -> None:
    """Serves one arm."""
    await Gateway(setting, state).serve()


if __name__ == "__main__":
    asyncio.run(main(read(Path(sys.argv[1])), Path(sys.argv[2])))
