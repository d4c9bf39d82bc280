"""Runs one flood: control and flood in turns, so that what else the machine does meets both alike."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgespec.core.errors import EdgespecError
from edgespec.lab.rig import Processes, module
from tools.attacks.attacker import Orders
from tools.attacks.floods import Flood
from tools.attacks.measure import Event, Kind, Outcome, Window
from tools.attacks.scene import Scene

ROOT = Path(__file__).parents[2]
"""This checkout, whose code attackers run, whatever checkout the gateway is from."""
START_S = 60.0
"""Longest wait for the client's first line, on a machine that has other work."""
SLICE_S = 15.0
"""Longest stretch of one kind."""
MIN_TURNS, SHORT_S = 2, 6.0
"""At least so many turns, but one where the flood is shorter than `SHORT_S` in all."""
WARM_UP_S = 3.0
"""Of the flood before the first control, to learn how much CPU the attacker uses."""
SETTLE_S = 1.0
"""After an attacker has started and before its phase is measured."""


@dataclass(slots=True)
class Runner:
    """Runs floods against one scene. `progress` receives each phase."""

    scene: Scene
    seconds: float
    progress: Callable[[str], None] = lambda text: None
    control: float = 1.0
    """Seconds of control for each second of flood."""
    _own: Processes = field(init=False)
    """The client's, and an attacker's."""

    def __post_init__(self) -> None:
        self._own = Processes(self.scene.folder, environment={"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"})

    def run(self, name: str, flood: Flood) -> Outcome:
        """One flood, `seconds` of it in all. What keeps it from being measured stands in the outcome."""
        outcome = Outcome(name, flood.sender, [], [])
        try:
            self._run(outcome, name, flood)
        except (EdgespecError, OSError) as error:
            outcome.error = " ".join(str(error).split())[-300:]
        return outcome

    def _run(self, outcome: Outcome, name: str, flood: Flood) -> None:
        scene = self.scene
        scene.make_ready()
        scene.recover()
        links, turns = scene.links(), max(MIN_TURNS if self.seconds > SHORT_S else 1, math.ceil(self.seconds / SLICE_S))
        if flood.takes_requests:
            scene.pause("pause")
        client = f"client-{name}"
        self._own.start(client, module("tools.attacks.client"))
        try:
            where = {**scene.where(), "cores": list(scene.other_cores), "seed": len(name)}
            self._own.say(client, json.dumps(where).encode())
            self._own.wait_for(client, lambda: bool(self._own.log(client)), START_S)
            self._phase(outcome, None, min(WARM_UP_S, self.seconds / 2))
            for turn in range(turns):
                kinds: tuple[Kind, ...] = ("control", "flood")
                for kind in kinds:
                    self.progress(f"{name}: {kind} {turn + 1} of {turns}")
                    last = kind == "flood" and turn == turns - 1
                    stretch_s = self.seconds / turns * (self.control if kind == "control" else 1.0)
                    self._phase(outcome, kind, stretch_s, pairs=flood.pairs and last)
                if not scene.stage.runs("gateway"):
                    break
        finally:
            self._own.stop(client, sig=None)
            outcome.events = list(_events(self._own.log(client)))
            outcome.gateway_ended = not scene.stage.runs("gateway")
            if flood.takes_requests and not outcome.gateway_ended:
                scene.pause("resume")
        outcome.workers_lost = scene.lost(links)

    def _phase(self, outcome: Outcome, kind: Kind | None, seconds: float, *, pairs: bool = False) -> None:
        """One stretch; `kind` None: a flood that is not measured. `pairs`: a machine is paired in the middle of it."""
        scene, name, floods = self.scene, outcome.name, kind != "control"
        burn = 0.0 if floods else outcome.attacker_cpu
        most_s = seconds + 60
        orders = Orders(name, floods, str(scene.checkout), burn, list(scene.other_cores), most_s, asdict(scene.aim()))
        self._own.start("attacker", module("tools.attacks.attacker"), piped=True)
        try:
            self._own.say("attacker", orders.line())
            self._own.line("attacker")
            time.sleep(SETTLE_S)
            window = Window(kind or "flood", time.monotonic(), 0.0)
            logged, used, others = scene.log_bytes(), scene.cpu_s(), scene.others_s(self._own.pids())
            if pairs:
                time.sleep(seconds / 2)
                outcome.pairing = scene.pair_one_more(f"late-{time.monotonic_ns() % 10_000}")
            time.sleep(max(0.0, window.start + seconds - time.monotonic()))
            window.end, now = time.monotonic(), scene.cpu_s()
            window.cpu_s, window.loop_s = now[0] - used[0], now[1] - used[1]
            window.others_s = max(0.0, scene.others_s(self._own.pids()) - others)
        finally:
            output = self._own.stop("attacker", sig=None)
        if floods:
            outcome.worst_recovery_s = max(outcome.worst_recovery_s, scene.recover())
        window.log_bytes = scene.log_bytes() - logged
        result: dict[str, Any] = {"count": {}, "cpu": 0.0}
        with suppress(ValueError, IndexError):  # it was killed
            result = json.loads(output.splitlines()[-1])
        if floods:
            outcome.attacker_cpu = result["cpu"] or outcome.attacker_cpu
            outcome.sent = dict(Counter(outcome.sent) + Counter(result["count"]))
        if kind is not None:
            outcome.windows.append(window)


def _events(lines: str) -> Iterator[Event]:
    """All that the client saw."""
    for line in lines.splitlines():
        with suppress(ValueError):  # one that was cut off
            yield Event.parse(line)
