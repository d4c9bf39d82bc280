"""Runs scenarios, one after the other on one scene, and measures each against its bounds."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

from tests.faults.scene import Scene, streams
from tests.faults.table import Scenario

STREAM_S = 120.0
"""Until a stream has ended, whatever happens: longer is a hang."""


@dataclass
class Outcome:
    """Of one scenario. `faults` is empty where every bound held."""

    name: str
    stall_s: float = 0.0
    recovery_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """For a table or JSON."""
        return asdict(self) | {"stall_s": round(self.stall_s, 2), "recovery_s": round(self.recovery_s, 2)}


def run(scene: Scene, scenario: Scenario) -> Outcome:
    """Two streams, a fault in their middle, and the way back to full health."""
    outcome = Outcome(scenario.name)
    with streams(scene) as running:
        try:
            scenario.inject(scene=scene)
        except AssertionError as error:
            outcome.faults.append(str(error))
        repaired = time.monotonic()
        for one in running:
            one.join(STREAM_S)
    for one in running:
        outcome.stall_s = max(outcome.stall_s, one.stall_s)
        if one.is_alive():
            outcome.faults.append(f"a stream has not ended after {STREAM_S:g} s")
        elif not one.complete and not (scenario.ends_streams and one.broke_off):
            outcome.faults.append(f"a text differs: {len(one.text)} characters, {one.error or 'no error'}")
    while not (healthy := scene.healthy()) and time.monotonic() < repaired + scenario.recovery_s:
        time.sleep(0.1)
    outcome.recovery_s = time.monotonic() - repaired
    if not healthy:
        outcome.faults.append(f"not healthy {scenario.recovery_s:g} s after the repair")
    for prompt, text in scene.expected.items():
        if healthy and scene.answer(prompt, policy="wanspec") != text:
            outcome.faults.append("a text after the repair differs")
    if outcome.stall_s > scenario.stall_s:
        outcome.faults.append(f"a stream stalled for longer than {scenario.stall_s:g} s")
    return outcome
