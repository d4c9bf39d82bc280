"""`python -m edgespec_lab.sim NAME`: the papers' results and the sweep, from the policies that ship."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.core.errors import ConfigError
from edgespec_lab import verbs
from edgespec_lab.choices import gateway_choices
from edgespec_lab.demo.scene import progress
from edgespec_lab.options import number
from edgespec_lab.sim import entropy, figures, sweep, tables
from edgespec_lab.sim.experiment import Simulator
from edgespec_lab.sim.live import replay

Simulated = Callable[..., dict[str, Any]]
FIGURES: dict[str, tuple[Simulated, str]] = {
    "fig7": (figures.figure7, "WANSpec figure 7: the ablation against the round trip"),
    "fig8": (figures.figure8, "WANSpec figure 8: 100 values of phi per round trip"),
    "fig9": (figures.figure9, "WANSpec figure 9: the cloud deployment, and the match statistics of section 5.4"),
    "tables": (tables.tables, "the cluster post's tables and the overview's formula"),
    "amusd": (tables.amusd, "AMUSD's table I"),
    "sweep": (sweep.sweep, "policy adaptive over ratios of steps, curves, match rates, round trips and faults"),
    "phi": (entropy.phi, "policy adaptive with the learnt limit on the target's entropy, on recorded tokens"),
}


COMPARED = ("colocated", "rolling-k", "amusd")
"""Policies of the papers that the figures have beside the core's."""


def parser() -> argparse.ArgumentParser:
    drawn = [verbs.Verb(name, text, partial(_add_arguments, name), _figure) for name, (_, text) in FIGURES.items()]
    return verbs.command("edgespec_lab.sim", [*drawn, verbs.Verb.of("replay-live", replay)], __doc__ or "")


def _add_arguments(name: str, command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json",
        type=Path,
        default=Path("out", f"{name}.json"),
        help="output (default: %(default)s); plots go beside it",
    )
    runs = number(int, 1, 10_000)
    processes = number(int, 1, 64)
    command.add_argument("--runs", type=runs, help="completions per point (default: as the configuration says)")
    command.add_argument("--processes", type=processes, default=2, help="processes to use (default: 2)")
    command.set_defaults(simulated=FIGURES[name][0])
    if name == "sweep":
        command.add_argument("--quick", action="store_true", help="three small places, to try it out")


def _require_writable(out: Path) -> None:
    """Raises ConfigError now rather than when all is simulated."""
    try:
        if out.suffix in (".png", ".svg"):
            raise ConfigError(f"--json {out} is where a plot goes: choose a name that ends in .json")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.open("a").close()
    except OSError as error:
        raise ConfigError(f"--json {out} cannot be written ({error.strerror}): choose another file") from error


def _figure(options: argparse.Namespace) -> int:
    _require_writable(options.json)
    with progress(verbs.console()) as bar:
        task = bar.add_task(options.name)

        def seen(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        more = {"quick": options.quick} if "quick" in options else {}
        simulator = Simulator(gateway_choices(*COMPARED).policies, options.processes, seen)
        answer = options.simulated(options.json, simulator, options.runs, **more)
    verbs.write_json(options.json, answer)
    print(answer.pop("text", None) or figures.summary(answer["rows"]))
    for key in [one for one in answer if one not in ("figure", "rows", "tables", "table", "worst")]:
        name = key.replace("_", " ")
        found = answer[key]
        verbs.console().print(verbs.table(_listed(name, found)) if isinstance(found, Mapping) else f"{name}: {found}")
    print(f"written: {options.json}, {options.json.with_suffix('.png')}, {options.json.with_suffix('.svg')}")
    return 0


def _listed(name: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each entry, with one column of this name or a column for each of an entry's own names."""
    rows = {key: one if isinstance(one, Mapping) else {name: one} for key, one in found.items()}
    return [{"": key} | {column.replace("_", " "): value for column, value in row.items()} for key, row in rows.items()]


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    return verbs.run(parser(), arguments)


if __name__ == "__main__":
    sys.exit(main())
