"""The gateway's process around engines that sleep: `python -m edgespec_lab.sim.live.gateway SETTING STATE`.

Engine, links, keys and TLS are the product's. Each line of standard input is a `Load`, and a `Reported` answers it; the
first line of standard output names the port for workers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from cloud_gateway.core.requests.choices import Choices
from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation, TokensEvent, Usage
from cloud_gateway.engine.exchange import Stream
from cloud_gateway.engine.loop import Engine
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.server import CONNECTIONS, Links, link_bounds
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from edgespec.core.protocol.handshake import GatewayIdentity
from edgespec.shared.server_keys import ServerKeyStore
from edgespec_lab.choices import gateway_choices
from edgespec_lab.rig import waited_s
from edgespec_lab.sim.live.engines import SleepingDraft, SleepingTarget
from edgespec_lab.sim.live.setting import VOCABULARY, Setting, read

LINK_S = 60.0
"""Until the workers are linked, whose processes have just been started."""


class Load(msgspec.Struct, frozen=True):
    """Clients that begin together."""

    seeds: Sequence[int]
    """Which completion each of them wants."""
    counted: int
    """Tokens of each, in the mean, that are measured."""
    skipped: int = 0
    """Tokens before those."""
    workers: bool = True
    """Whether workers draft, and so whether to wait until all are linked."""
    policy: str | None = None
    """None: the setting's."""


class Reported(msgspec.Struct, frozen=True):
    """What the tokens counted took."""

    tokens: int
    seconds: float
    """From the first one, or from the end of the prompts' reading, to the last token's arrival on the event loop."""
    passes: int
    draft_passes: int
    rows: int
    host_s: float
    """The engine's time outside the models, merging of frames included."""
    cpu_s: float
    waited_s: float
    """For which threads of this process could run and waited for a core."""
    late_us: float
    """The 90th percentile of how much longer the target's passes took than modelled, so far."""
    accepted: int = 0
    """Candidates; it and the fields below are of completions that ended."""
    frames: int = 0


class Gateway:
    """Engine and links. Lives on the event loop."""

    def __init__(self, setting: Setting, state: Path, choices: Choices) -> None:
        self._setting = setting
        store = ServerKeyStore(state)
        self._tls = store.tls_identity()
        me = GatewayIdentity(store.identity(), "sleeps", self._tls.spki_hash, setting.digest)
        paired = PairedWorkers(store.folder)
        self._links = Links(me, VOCABULARY, paired, lambda reason: None, bounds=link_bounds(CONNECTIONS))
        self._target = SleepingTarget(setting)
        settings = engine_settings(GatewaySettings(policy=setting.policy), choices)
        self._engine = self._links.inbox = Engine(
            self._target, SleepingDraft(setting), settings, self._links,
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

    async def _measure(self, load: Load) -> Reported:
        async with asyncio.timeout(LINK_S):
            while load.workers and len(self._links.linked()) < self._setting.workers:  # noqa: ASYNC110 - as a rig does
                await asyncio.sleep(0.01)
        setting = self._setting
        clients = len(load.seeds)
        speculation = Speculation(policy=load.policy, offload="auto" if load.workers else "never")
        self._tokens = 0
        start = await self._reading(0)
        streams = [
            self._engine.submit(
                GenerationRequest(setting.prompt(seed), setting.length, ignore_eos=True, speculation=speculation)
            )
            for seed in load.seeds
        ]
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(self._read(*one)) for one in zip(load.seeds, streams, strict=True)]
            before = await self._reading(load.skipped * clients) if load.skipped else start
            after = await self._reading((load.skipped + load.counted) * clients)
            if load.counted < setting.length:
                for stream in streams:
                    stream.cancel()
        ended = [usage for reader in readers if (usage := reader.result()) is not None]
        more = {name: after[name] - before[name] for name in after}
        more["seconds"] -= 0.0 if load.skipped else setting.prefill_ms / 1e3
        return Reported(
            **more,
            late_us=self._target.sleeper.summary().get("p90_us", 0.0),
            accepted=sum(sum(usage.accepted.values()) for usage in ended),
            frames=sum(usage.frames["received"] for usage in ended),
        )

    async def _reading(self, tokens: int) -> dict[str, Any]:
        """Everything that is counted, once so many tokens of this load have come."""
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

    async def _read(self, seed: int, stream: Stream) -> Usage | None:
        """Counts a client's tokens. Raises RuntimeError where they are not the process's."""
        wanted = self._setting.process(seed).targets
        position = 1
        usage = None
        async for event in stream:
            if isinstance(event, TokensEvent):
                if list(wanted[position : position + len(event.tokens)]) != list(event.tokens):
                    raise RuntimeError(f"client {seed} got other tokens than the target says")
                position += len(event.tokens)
                self._tokens += len(event.tokens)
                if self._tokens >= self._wanted:
                    self._reached.set()
            elif isinstance(event, DoneEvent):
                if event.error:
                    raise RuntimeError(event.error)
                usage = event.usage

        return usage


def _say(value: object) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(Gateway(read(Path(sys.argv[1])), Path(sys.argv[2]), gateway_choices()).serve())
