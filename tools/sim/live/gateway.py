"""The gateway's process of a live replay: `python -m tools.sim.live.gateway SETTING STATE`.

Engine, links, keys and TLS are the product's. Completions are requested by one JSON line each on standard input and
reported by one each on standard output, where the first line names the port for workers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation, TokensEvent
from cloud_gateway.engine.loop import Engine
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.port import LinkLimits
from cloud_gateway.links.server import Links
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from edgespec.core.protocol.handshake import GatewayIdentity
from edgespec.shared.server_keys import ServerKeyStore
from tools.doubles.limits import link_limits
from tools.sim.live.engines import SleepingDraft, SleepingTarget
from tools.sim.live.setting import PROMPT_TOKENS, VOCABULARY, Setting, read

LINK_S = 60.0
"""Until the workers are linked, whose processes have just been started."""


class Asked(msgspec.Struct, frozen=True):
    """One answer."""

    seed: int
    policy: str
    worker: bool
    """Whether the workers draft for it, and so whether to wait until all are linked; otherwise it is the reference."""


class Reported(msgspec.Struct, frozen=True):
    """What became of it."""

    seconds: float
    """From the end of the prompt's reading to the last token's arrival on the event loop."""
    tokens: int
    right: bool
    """Whether the tokens are the process's, every one of them."""
    rounds: int
    local_passes: int
    frames: int
    host_s: float
    """The engine's time outside the models, merging of frames included."""
    rtt_s: float
    """As the gateway measured it."""
    step_s: float
    """The worker's step, as the gateway measured it."""
    accepted: int
    """Candidates."""
    by_worker: list[dict[str, int]]
    """Of each worker, the first one first, as in the usage of a request."""
    late_us: dict[str, float] = {}
    """By how much the target's passes took longer than modelled, so far."""


class Gateway:
    """Engine and links of one replay, and the engine of the reference. Lives on the event loop."""

    def __init__(self, setting: Setting, state: Path) -> None:
        self._setting = setting
        store = ServerKeyStore(state)
        self._tls = store.tls_identity()
        paired = PairedWorkers(store.folder)
        me = GatewayIdentity(store.identity(), "replay", self._tls.spki_hash, setting.digest)
        self._links = Links(me, VOCABULARY, paired, lambda reason: None, limits=LinkLimits(link_limits()))
        # The worker receives the prompt half a round trip after the request came. Reading it takes the target as long,
        # so that both begin at the same moment, as in the simulator.
        self._prefill_s = setting.rtt_ms / 2000
        self.target = SleepingTarget(setting, self._prefill_s)
        settings = engine_settings(GatewaySettings(policy=setting.policy))
        self._reference = Engine(SleepingTarget(setting, self._prefill_s), SleepingDraft(setting), settings)
        draft = SleepingDraft(setting) if setting.local else None
        self._engine = self._links.inbox = Engine(self.target, draft, settings, self._links)

    async def start(self) -> int:
        """Returns the port for workers."""
        self._reference.start()
        self._engine.start()
        return await self._links.start("127.0.0.1", 0, self._tls.context())

    async def stop(self) -> None:
        await self._links.stop()
        for engine in (self._engine, self._reference):
            await asyncio.to_thread(engine.stop)

    async def answer(self, asked: Asked) -> Reported:
        """One answer, timed where its tokens arrive."""
        setting, engine = self._setting, self._engine if asked.worker else self._reference
        if asked.worker:
            async with asyncio.timeout(LINK_S):
                while len(self._links.linked()) < setting.workers:  # noqa: ASYNC110 - the links tell the engine, not us
                    await asyncio.sleep(0.01)
        process = setting.kind.make(asked.seed, setting.length)
        speculation = Speculation(policy=asked.policy, offload="auto" if asked.worker else "never")
        request = GenerationRequest(
            setting.prompt(asked.seed), setting.length, ignore_eos=True, speculation=speculation
        )
        tokens: list[int] = []
        host_s, last = engine.stats.host_s, 0.0
        began = time.perf_counter()
        async for event in engine.submit(request):
            if isinstance(event, TokensEvent):
                tokens += event.tokens
                last = time.perf_counter()
            elif isinstance(event, DoneEvent):
                usage = event.usage
        linked = next(iter(self._links.linked().values()), None)
        return Reported(
            seconds=last - began - self._prefill_s,
            tokens=len(tokens),
            right=tokens == list(process.targets[1 : setting.length + 1]),
            rounds=usage.rounds,
            local_passes=usage.local_draft_passes,
            frames=usage.frames["received"],
            host_s=engine.stats.host_s - host_s,
            rtt_s=linked.rtt_s if linked else 0.0,
            step_s=linked.step_s if linked else 0.0,
            accepted=sum(usage.accepted.values()),
            by_worker=list(usage.by_worker.values()),
            late_us=self.target.sleeper.summary(),
        )


async def serve(setting: Setting, state: Path) -> None:
    """Answers until standard input ends."""
    gateway = Gateway(setting, state)
    _say({"port": await gateway.start()})
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            _say(await gateway.answer(msgspec.json.decode(line, type=Asked)))
    finally:
        await gateway.stop()


def _say(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


if __name__ == "__main__":
    assert PROMPT_TOKENS == 2, "the seed and one token"
    asyncio.run(serve(read(Path(sys.argv[1])), Path(sys.argv[2])))
