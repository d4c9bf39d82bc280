"""The shipped engine, policies and drafting rule in virtual time, with modelled passes and links.

The engine's own loop runs here turn by turn; a pass moves the clock on, and what workers send meanwhile arrives in the
middle of it. Hosts take no time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from cloud_gateway.core.policies.policy import WIDTHS
from cloud_gateway.core.requests.choices import CORE, Choices
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.pool import Workers
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import Close, Commit, Frame, Open, Share, ToWorker, Tree, encode
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim.live.engines import SleepingDraft, SleepingTarget
from edgespec_lab.sim.live.setting import Setting
from edgespec_lab.sim.network import Clock, Pipe
from edgespec_lab.sim.steps import Steps
from edgespec_lab.sim.world import SESSION, Worker


class Jumps:
    """Virtual time for engines that sleep; what is due meanwhile happens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.until = clock.until

    def now(self) -> float:
        """Seconds."""
        return self._clock.now

    def summary(self) -> dict[str, float]:
        """It is never late."""
        return {}


class VirtualWorkers(Workers):
    """The link layer: a worker for each of so many requests, each behind a link of its own."""

    arrived: Callable[[FrameArrived], None]
    """Takes in what has come from a worker."""

    def __init__(self, clock: Clock, setting: Setting, count: int) -> None:
        self._clock = clock
        self._setting = setting
        self._steps: Steps = setting.steps
        points = tuple((leaves, self._steps.worker(leaves)) for leaves in WIDTHS)
        rtt_s = setting.rtt_ms / 1e3
        self._linked = {
            name: LinkedWorker(name, rtt_s, rtt_s, self._steps.worker(1), paused=False, draft_points=points)
            for name in (f"{number:016x}" for number in range(count))
        }
        self._pipes = {name: (self._pipe(name, "down"), self._pipe(name, "up")) for name in self._linked}
        self._drafting: dict[tuple[str, int], Worker] = {}

    def _pipe(self, name: str, way: str) -> Pipe:
        return Pipe(LinkModel(self._setting.rtt_ms / 1e3), random.Random(f"{name} {way}"))

    def linked(self) -> Mapping[str, LinkedWorker]:
        return self._linked

    def view(self, worker: str) -> LinkedWorker | None:
        return self._linked.get(worker)

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        """It arrives half a round trip later."""
        down = self._pipes[worker][0]
        size = len(encode(Frame(SESSION, down.messages + 1, list(bodies))))
        self._clock.at(down.send(self._clock.now, size), partial(self._take, worker, bodies))

    def _take(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        for body in bodies:
            match body:
                case Open():
                    self._drafting[worker, body.request] = self._begin(worker, body)
                case Commit() | Share():
                    self._drafting[worker, body.request].take(body)
                case Close():
                    del self._drafting[worker, body.request]

    def _begin(self, worker: str, opening: Open) -> Worker:
        setting = self._setting
        clock = self._clock
        rule = BestFirstRule(branching=setting.branching, sequences=setting.sequences)
        drafting = BestFirst(opening.request, opening.epoch, opening.prompt_len, rule, step_s=self._steps.worker)
        process = setting.process(opening.tokens[0])
        made = Worker(clock, drafting, process, self._steps, opening.prompt_len - 1, random.Random(worker))
        down, up = self._pipes[worker]

        def deliver(frame: Tree, arrival: float) -> None:
            clock.at(arrival, lambda: self.arrived(FrameArrived(worker, frame)))

        made.connect(up, down, deliver)
        made.take(Commit(opening.request, opening.epoch, 0, opening.tokens, prefix_hash(opening.tokens)))
        return made

    @property
    def bytes(self) -> tuple[int, int]:
        """To the workers and from them, so far."""
        down, up = (sum(pipes[way].bytes for pipes in self._pipes.values()) for way in (0, 1))
        return down, up


class _AtOnce:
    """In the event loop's place."""

    def call_soon_threadsafe(self, call: Callable[..., None], *given: Any) -> None:
        call(*given)


def measure(
    setting: Setting,
    workers: int,
    clients: int,
    skipped: int,
    counted: int,
    *,
    drafts_here: bool = True,
    choices: Choices = CORE,
) -> dict[str, float]:
    """Tokens a second of a client, of `clients` that begin together: between `skipped` and `counted` more tokens of
    each in the mean. Further: passes of the target, the gateway's draft passes, rows and bytes a token.

    `drafts_here`: whether the gateway has a draft of its own. `choices`: the setting's policy is among them.
    """
    clock = Clock()
    jumps = Jumps(clock)
    target = SleepingTarget(setting, jumps)
    draft = SleepingDraft(setting, jumps) if drafts_here else None
    links = VirtualWorkers(clock, setting, workers)
    settings = replace(engine_settings(GatewaySettings(policy=setting.policy), choices), queue_limit=clients)
    engine = Engine(
        target, draft, settings, links,
        clock=jumps.now, curve={rows: ms / 1e3 for rows, ms in setting.verify_ms.items()},
    )  # fmt: skip
    links.arrived = engine.post
    engine.use_loop(cast("Any", _AtOnce()))
    for seed in range(clients):
        speculation = Speculation(offload="auto" if workers else "never")
        engine.submit(GenerationRequest(setting.prompt(seed), setting.length, ignore_eos=True, speculation=speculation))

    def go_on(tokens: int) -> dict[str, float]:
        while engine.stats.tokens < tokens * clients:
            wake = engine.turn()
            while wake is not None and not engine._wake.is_set() and clock.now < wake:
                clock.until(min(wake, clock.next_at))
            engine._wake.clear()
        down, up = links.bytes
        return {
            "tokens": engine.stats.tokens, "seconds": clock.now, "passes": engine.stats.rounds,
            "draft_passes": engine.stats.local_passes, "rows": target.rows, "down": down, "up": up,
        }  # fmt: skip

    return rates(go_on(skipped), go_on(skipped + counted), clients)


def rates(before: Mapping[str, float], after: Mapping[str, float], clients: int) -> dict[str, float]:
    """Rates and shares between two readings."""
    more = {name: after[name] - before[name] for name in after}
    tokens = more["tokens"]
    return {
        "rate": tokens / more["seconds"] / clients,
        "tokens_per_pass": tokens / more["passes"],
        "draft_passes": more["draft_passes"] / tokens,
        "rows": more["rows"] / tokens,
        "down_bytes": more["down"] / tokens,
        "up_bytes": more["up"] / tokens,
    }
