"""`python -m tests.faults.soak --minutes 30`: eight clients, four workers, a random fault every ten seconds."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.lab.rig import RigError
from tests.faults.scene import PROMPTS, Scene
from tests.faults.table import TABLE, Scenario, descriptors

WORKERS = ("worker", "second", "third", "fourth")
CLIENTS = 8
FAULT_S = 10.0
SETTLE_S = 90.0
"""Until all workers are linked again and nothing runs: their longest wait before they dial again."""
MAX_NEW_DESCRIPTORS = 8
"""Of the gateway over a run: connections that are kept for a while, as the metrics' own."""
EXCLUDED = ("gateway is stopped", "gateway is killed", "revoked", "replaced", "clock", "each worker")
"""They end what the clients count on, or take longer than the time between two faults."""


class Client(threading.Thread):
    """Asks again and again, and compares."""

    def __init__(self, scene: Scene, number: int, end: float) -> None:
        super().__init__(daemon=True)
        self.scene, self.prompt, self.end = scene, PROMPTS[number % len(PROMPTS)], end
        self.right = self.wrong = 0
        self.errors: list[str] = []

    def run(self) -> None:
        """Until `end`."""
        while time.monotonic() < self.end:
            try:
                same = self.scene.answer(self.prompt) == self.scene.expected[self.prompt]
            except RigError as error:
                self.errors.append(str(error)[:160])
                continue
            self.right += same
            self.wrong += not same


def resident_kb(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def soak(scene: Scene, minutes: float, seed: int) -> dict[str, Any]:
    """The figures of one run."""
    rng, end = random.Random(seed), time.monotonic() + minutes * 60
    rows = [row for row in TABLE if not any(text in row.name for text in EXCLUDED)]
    gateway = scene.rig.pid("gateway")
    opened = descriptors(gateway)
    clients = [Client(scene, i, end) for i in range(CLIENTS)]
    for one in clients:
        one.start()
    memory: list[tuple[float, int]] = []
    injected: list[str] = []
    while time.monotonic() < end:
        began = time.monotonic()
        memory.append((began / 60, resident_kb(gateway)))
        injected.append(_inject(scene, rng.choice(rows)))
        time.sleep(max(began + FAULT_S - time.monotonic(), 0))
    for one in clients:
        one.join(120)
    settled = _until_settled(scene)
    times, sizes = zip(*memory[len(memory) // 2 :])  # the first half fills caches
    return {
        "minutes": minutes,
        "faults": len(injected),
        "failed_injections": [text for text in injected if text],
        "right": sum(one.right for one in clients),
        "wrong": sum(one.wrong for one in clients),
        "errors": [text for one in clients for text in one.errors],
        "hung_clients": sum(one.is_alive() for one in clients),
        "requests_left": scene.metric("edgespec_active_requests") + scene.metric("edgespec_queued_requests"),
        "new_descriptors": descriptors(gateway) - opened,
        "all_linked_again": settled,
        "gateway_kb_per_minute": round(float(np.polyfit(times, sizes, 1)[0]), 1) if len(times) > 2 else None,
    }


def _inject(scene: Scene, row: Scenario) -> str:
    """What went wrong with the injection itself; empty as a rule."""
    try:
        row.inject(scene=scene)
    except (AssertionError, OSError, KeyError, RigError) as error:
        return f"{row.name}: {error}"[:160]
    finally:
        for name in scene.workers:
            scene.restart(name)
    return ""


def _until_settled(scene: Scene) -> bool:
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            if scene.linked() == len(scene.workers) and not scene.metric("edgespec_active_requests"):
                return True
        time.sleep(0.5)
    return False


def main() -> int:
    """Exit code 1 for a wrong text, a hang or a leak."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Scene(Path(folder), WORKERS) as scene:
        figures = soak(scene, options.minutes, options.seed)
    print(json.dumps(figures, indent=1))
    leaks = figures["requests_left"] or figures["new_descriptors"] > MAX_NEW_DESCRIPTORS
    return int(bool(figures["wrong"] or figures["hung_clients"] or leaks or not figures["all_linked_again"]))


if __name__ == "__main__":
    sys.exit(main())
