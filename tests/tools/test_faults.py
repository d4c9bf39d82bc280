"""The runner of the table of faults: which rows run, what is written of them, and what a row that goes wrong costs."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from edgespec_lab.rig import RigError
from tests.faults.run import Outcome, Scenes
from tests.faults.scene import Scene
from tests.faults.table import Scenario

ROWS = [Scenario(name, lambda scene: None) for name in ("one", "two", "three", "four", "five")]


def test_a_row_that_fails_or_hangs_costs_itself_and_gets_a_new_scene() -> None:
    made: list[str] = []

    @contextlib.contextmanager
    def scene(folder: Path) -> Iterator[Scene]:
        made.append("begun")
        if len(made) == 3:
            raise RigError("The gateway did not get ready.")
        yield cast(Scene, folder)
        made.append("ended")

    def run_one(scene: Scene, row: Scenario) -> Outcome:
        match row.name:
            case "two":
                return Outcome(row.name, faults=["a text differs"])
            case "four":
                signal.setitimer(signal.ITIMER_REAL, 0.01)  # its time is over early
                time.sleep(60)
            case "five":
                raise KeyError("second")
        return Outcome(row.name)

    with Scenes(scene, run_one) as scenes:
        outcomes = [scenes.run(row).faults for row in (*ROWS, ROWS[0])]
    assert outcomes[0] == outcomes[5] == []
    assert outcomes[1:3] == [["a text differs"], ["RigError: The gateway did not get ready."]]
    assert outcomes[3:5] == [["Overdue: no end after 600 s"], ["KeyError: 'second'"]]
    assert made == ["begun", "ended", "begun", "begun", "ended", "begun", "ended", "begun", "ended"]
