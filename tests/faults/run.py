"""Runs scenarios, one after the other on one scene, measures each against its bounds, and writes the table."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from edgespec_lab.rig import RigError
from tests.faults.scene import Scene, streams
from tests.faults.table import Scenario

STREAM_S = 120.0
"""Until a stream has ended, whatever happens: longer is a hang."""
ROW_S = 600.0
"""Time for a row with all its waits, and the start of a scene if it needs one."""
HEAD = "| # | fault | longest stall | bound | recovery | bound | |\n| --- | --- | --- | --- | --- | --- | --- |\n"
"""Times in seconds."""
BROKEN = (AssertionError, OSError, KeyError, ValueError, HTTPException, RigError)
"""Raised by an injection that cannot be made, or that finds that something is wrong."""


class Overdue(Exception):
    """A bound of time is over."""


@dataclass
class Outcome:
    """The outcome of one scenario. `faults` is empty if every bound held."""

    name: str
    stall_s: float = 0.0
    recovery_s: float = 0.0
    faults: list[str] = field(default_factory=list)


class Scenes:
    """Runs rows on one scene, and after a row that failed on a new one. A context manager: leaving it ends all."""

    def __init__(
        self,
        make: Callable[[Path], contextlib.AbstractContextManager[Scene]] = Scene,
        run_one: Callable[[Scene, Scenario], Outcome] | None = None,
        row_s: float = ROW_S,
    ) -> None:
        """`run_one` is `run`; tests replace it."""
        self._make = make
        self._run = run_one or run
        self._row_s = row_s
        self._ends = contextlib.ExitStack()
        self._scene: Scene | None = None

    def __enter__(self) -> Scenes:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def run(self, scenario: Scenario) -> Outcome:
        """One row; whatever goes wrong is a fault of it. Its time is bounded, besides that to end a scene."""
        try:
            with within(self._row_s):
                if self._scene is None:
                    folder = self._ends.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
                    self._scene = self._ends.enter_context(self._make(Path(folder)))
                outcome = self._run(self._scene, scenario)
        except (*BROKEN, Overdue) as error:
            outcome = Outcome(scenario.name, faults=[f"{type(error).__name__}: {error}"])
        if outcome.faults:
            self._scene = None
            self._ends.close()
        return outcome


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises Overdue in the block, in the main thread, if it has not ended after so many seconds."""

    def late(*_: object) -> None:
        raise Overdue(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def run(scene: Scene, scenario: Scenario) -> Outcome:
    """One row, within what has to stand around it."""
    with scenario.around(scene):
        return measured(scene, scenario)


def measured(scene: Scene, scenario: Scenario) -> Outcome:
    """Two streams, a fault in their middle, and the way back to full health."""
    outcome = Outcome(scenario.name)
    with streams(scene) as running:
        try:
            scenario.inject(scene=scene)
        except BROKEN as error:
            outcome.faults.append(str(error) if isinstance(error, AssertionError) else f"not injected: {error}")
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


class Report:
    """The table of what each row took beside its bounds, as JSON and Markdown, written again after each row."""

    def __init__(self, path: Path | None) -> None:
        """`path`: of the JSON; None: nothing is written."""
        self._path = path
        self._rows: list[dict[str, Any]] = []

    @property
    def failed(self) -> int:
        """Rows of which a bound did not hold."""
        return sum(bool(row["faults"]) for row in self._rows)

    def add(self, number: int, scenario: Scenario, outcome: Outcome) -> str:
        """A row that has run; returns it for a terminal."""
        bounds = {"stall_bound_s": scenario.stall_s, "recovery_bound_s": scenario.recovery_s}
        took = {"stall_s": round(outcome.stall_s, 2), "recovery_s": round(outcome.recovery_s, 2)}
        self._rows.append({"number": number, **asdict(outcome), **took, **bounds})
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self._rows, indent=1) + "\n")
            lines = (f"| {' | '.join(_cells(row))} |\n" for row in self._rows)
            self._path.with_suffix(".md").write_text(HEAD + "".join(lines))
        _, name, stall, stall_bound, recovery, recovery_bound, result = _cells(self._rows[-1])
        times = f"stall {stall:>6} of {stall_bound} s, recovery {recovery:>6} of {recovery_bound} s"
        return f"{number:>2} {name:58} {times} {result}"


def _cells(row: dict[str, Any]) -> list[str]:
    times = (f"{row[name]:g}" for name in ("stall_s", "stall_bound_s", "recovery_s", "recovery_bound_s"))
    result = " ".join("; ".join(row["faults"]).replace("|", "/").split())
    return [str(row["number"]), row["name"], *times, result or "held"]
