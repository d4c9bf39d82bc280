"""The runner of the table of faults: which rows run, what is written of them, and what a row that goes wrong costs."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from edgespec_lab.rig import RigError
from tests.faults.__main__ import chosen
from tests.faults.run import Outcome, Report, Scenes
from tests.faults.scene import Scene
from tests.faults.table import TABLE, Scenario

ROWS = [Scenario(name, lambda scene: None) for name in ("one", "two", "three", "four", "five")]


def test_the_table_is_written_after_each_row(tmp_path: Path) -> None:
    path = tmp_path / "out" / "faults.json"
    report = Report(path)
    report.add(1, ROWS[0], Outcome("one", 0.5, 1.0))
    assert [row["name"] for row in json.loads(path.read_text())] == ["one"] and report.failed == 0
    assert "stall   1.23 of 5 s" in report.add(2, ROWS[1], Outcome("two", 1.234, 5.678, ["a text | differs\nhere"]))
    assert path.with_suffix(".md").read_text().splitlines()[2:] == [
        "| 1 | one | 0.5 | 5 | 1 | 60 | held |",
        "| 2 | two | 1.23 | 5 | 5.68 | 60 | a text / differs here |",
    ]
    assert report.failed == 1


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


def test_rows_are_chosen_by_number_and_by_text() -> None:
    assert [number for number, _ in chosen("")] == list(range(1, len(TABLE) + 1))
    assert [number for number, _ in chosen("7, 9")] == [7, 9]
    names = [row.name for _, row in chosen("is killed,5 % loss")]
    assert len(names) == 4 and all("killed" in name or "5 % loss" in name for name in names)
    assert chosen("no such row") == []
