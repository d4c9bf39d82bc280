"""`python -m tests.faults.soak --minutes 30`: eight clients, four workers, a random fault every ten seconds.

After each fault a line of counters is printed, and written where `--json` says. The end has a verdict: exit code 1 for
a wrong text, a request that failed though the gateway could answer, a hang, a leak, or a gateway that ended.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.lab.rig import RigError
from tests.faults.report import replace_text
from tests.faults.run import BROKEN
from tests.faults.scene import PROMPTS, Scene
from tests.faults.table import TABLE, Scenario, descriptors
from tools import verbs

WORKERS = ("worker", "second", "third", "fourth")
CLIENTS = 8
FAULT_S = 10.0
SETTLE_S = 90.0
"""Until all workers are linked again and nothing runs: their longest wait before they dial again."""
MAX_NEW_DESCRIPTORS = 8
"""Of the gateway over a run: connections that are kept for a while, as the metrics' own."""
REFUSES = "the gateway has no descriptor left"
"""The one fault in which a new connection may break off without an answer."""
EXCLUDED = ("gateway is stopped", "gateway is killed", "revoked", "replaced", "clock", "each worker")
"""They end what the clients count on, or take longer than the time between two faults."""


class Client(threading.Thread):
    """Asks again and again, and compares."""

    def __init__(self, scene: Scene, number: int, over: threading.Event, faults: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.scene, self.prompt, self.over, self.faults = scene, PROMPTS[number % len(PROMPTS)], over, faults
        self.right = self.wrong = 0
        self.errors: list[str] = []
        """Each with the last fault before it."""

    def run(self) -> None:
        """Until it is over."""
        while not self.over.is_set():
            try:
                same = self.scene.answer(self.prompt) == self.scene.expected[self.prompt]
            except (RigError, OSError, ValueError, HTTPException) as error:
                self.errors.append(f"{self.faults[-1] if self.faults else 'start'}: {error}"[:200])
                self.over.wait(0.2)
                continue
            self.right += same
            self.wrong += not same


def resident_kb(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


class Soak:
    """One run: its clients and what has been counted so far."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.began, self.over = scene, time.monotonic(), threading.Event()
        self.gateway = scene.rig.pid("gateway")
        self._opened = descriptors(self.gateway)
        self._faults: list[str] = []
        self.clients = [Client(scene, i, self.over, self._faults) for i in range(CLIENTS)]
        self._memory: list[tuple[float, int]] = []
        """Minutes since the beginning, and the gateway's KB."""
        self._injected: list[str] = []

    def run(self, minutes: float, seed: int, show: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """The figures of the whole run; `show` gets those so far after each fault."""
        rng = random.Random(seed)
        rows = [row for row in TABLE if not any(text in row.name for text in EXCLUDED)]
        for one in self.clients:
            one.start()
        while time.monotonic() < self.began + minutes * 60 and self.scene.rig.runs("gateway"):
            began = time.monotonic()
            self._memory.append(((began - self.began) / 60, resident_kb(self.gateway)))
            row = rng.choice(rows)
            self._faults.append(row.name)
            self._injected.append(_inject(self.scene, row))
            show(self.figures())
            time.sleep(max(began + FAULT_S - time.monotonic(), 0))
        self.over.set()
        for one in self.clients:
            one.join(120)
        return {**self.figures(), **self._end()}

    def figures(self) -> dict[str, Any]:
        """What is counted at any time."""
        return {
            "minutes": round((time.monotonic() - self.began) / 60, 1),
            "faults": len(self._injected),
            "failed_injections": [text for text in self._injected if text],
            "right": sum(one.right for one in self.clients),
            "wrong": sum(one.wrong for one in self.clients),
            "errors": dict(Counter(text for one in self.clients for text in one.errors)),
            "gateway_kb": self._memory[-1][1] if self._memory else None,
            "gateway_kb_per_minute": slope(self._memory),
        }

    def _end(self) -> dict[str, Any]:
        """What is counted when all clients have left."""
        runs = self.scene.rig.runs("gateway")
        settled = runs and _until_settled(self.scene)
        active, queued = (
            self.scene.metric(f"edgespec_{name}_requests") if runs else 0 for name in ("active", "queued")
        )
        return {
            "gateway_runs": runs,
            "hung_clients": sum(one.is_alive() for one in self.clients),
            "requests_left": active + queued,
            "new_descriptors": descriptors(self.gateway) - self._opened if runs else 0,
            "all_linked_again": settled,
        }


def slope(memory: Sequence[tuple[float, int]]) -> float | None:
    """KB a minute over the second half, since the first one fills caches; None for fewer than three points."""
    times, sizes = [one[0] for one in memory[len(memory) // 2 :]], [one[1] for one in memory[len(memory) // 2 :]]
    return round(float(np.polyfit(times, sizes, 1)[0]), 1) if len(times) > 2 else None


def verdict(figures: Mapping[str, Any]) -> list[str]:
    """What did not hold, of the figures of a whole run."""
    failed = sum(count for text, count in figures["errors"].items() if not text.startswith(REFUSES))
    found = {
        f"{failed} requests failed though the gateway could answer": failed,
        "no completion was right": not figures["right"],
        f"{figures['wrong']} texts were wrong": figures["wrong"],
        "the gateway has ended": not figures["gateway_runs"],
        f"{figures['hung_clients']} clients hung": figures["hung_clients"],
        f"{figures['requests_left']:g} requests were left": figures["requests_left"],
        f"{figures['new_descriptors']} descriptors were left": figures["new_descriptors"] > MAX_NEW_DESCRIPTORS,
        "not all workers were linked again": not figures["all_linked_again"],
    }
    return [text for text, fails in found.items() if fails]


def _inject(scene: Scene, row: Scenario) -> str:
    """What went wrong with the injection itself; empty as a rule."""
    try:
        row.inject(scene=scene)
    except BROKEN as error:
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


def _count(value: Any) -> Any:
    match value:
        case dict():
            return sum(value.values())
        case list():
            return len(value)
    return value


def run_soak(options: argparse.Namespace) -> int:
    """Prints the figures and the verdict. Raises RigError where gateway or workers do not start."""

    def write(figures: Mapping[str, Any], result: str | list[str]) -> None:
        if options.json is not None:
            replace_text(options.json, json.dumps({**figures, "verdict": result}, indent=1) + "\n")

    def show(figures: Mapping[str, Any]) -> None:
        counters = {name: _count(value) for name, value in figures.items()}
        print(", ".join(f"{name} {value}" for name, value in counters.items()), flush=True)
        write(figures, "not ended")

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Scene(Path(folder), WORKERS) as scene:
        figures = Soak(scene).run(options.minutes, options.seed, show)
    failed = verdict(figures)
    write(figures, failed or "held")
    print(json.dumps(figures, indent=1))
    print(f"the soak held, memory {figures['gateway_kb_per_minute']} KB a minute" if not failed else "; ".join(failed))
    return int(bool(failed))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures here after each fault")
    parser.set_defaults(run=run_soak)
    return verbs.run(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
