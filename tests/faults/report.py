"""The table of faults: what each row took beside its bounds, as JSON and Markdown, written again after each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.faults.run import Outcome
from tests.faults.table import Scenario

HEAD = "| # | fault | longest stall | bound | recovery | bound | |\n| --- | --- | --- | --- | --- | --- | --- |\n"
"""Times in seconds."""


class Report:
    """Rows by name, of this run and, where it was resumed, of those before."""

    def __init__(self, path: Path | None, *, resumed: bool = False) -> None:
        """`path`: of the JSON; None: nothing is written."""
        self._path = path
        self._rows: dict[str, dict[str, Any]] = {}
        if resumed and path is not None and path.exists():
            self._rows = {row["name"]: row for row in json.loads(path.read_text())}

    def held(self, name: str) -> bool:
        """Whether this row ran, and all its bounds held."""
        return name in self._rows and not self._rows[name]["faults"]

    def add(self, number: int, scenario: Scenario, outcome: Outcome) -> None:
        """A row that has run."""
        bounds = {"stall_bound_s": scenario.stall_s, "recovery_bound_s": scenario.recovery_s}
        self._rows[scenario.name] = {"number": number, **outcome.row(), **bounds}
        if self._path is not None:
            rows = sorted(self._rows.values(), key=lambda row: row["number"])
            replace_text(self._path, json.dumps(rows, indent=1) + "\n")
            replace_text(
                self._path.with_suffix(".md"), HEAD + "".join(f"| {' | '.join(_cells(row))} |\n" for row in rows)
            )

    def line(self, name: str) -> str:
        """A row for a terminal."""
        number, name, stall, stall_bound, recovery, recovery_bound, result = _cells(self._rows[name])
        times = f"stall {stall:>6} of {stall_bound} s, recovery {recovery:>6} of {recovery_bound} s"
        return f"{number:>2} {name:58} {times} {result}"


def _cells(row: dict[str, Any]) -> list[str]:
    times = (f"{row[name]:g}" for name in ("stall_s", "stall_bound_s", "recovery_s", "recovery_bound_s"))
    result = " ".join("; ".join(row["faults"]).replace("|", "/").split())
    return [str(row["number"]), row["name"], *times, result or "held"]


def replace_text(path: Path, text: str) -> None:
    """Never half a file, also where the run is ended meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)
