"""`edgespec plan` against ten places of the map: tokens a second as planned, as the map has them, and over sockets.

The map assumes more than the plan asks for: how its drafts spread, and the rows at which a pass begins to take longer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgespec_lab.markdown import table
from edgespec_lab.plan import Place, outcome
from tools.bench.map.machine import DRAFT_MS, TARGET_MS

MAP = Path(__file__).parents[2] / "docs/results/map.json"
PLACES = (
    (0.0, 0.5, 1),
    (2.0, 0.5, 1),
    (8.0, 0.5, 1),
    (2.0, 0.75, 1),
    (8.0, 0.95, 1),
    (0.0, 0.75, 4),
    (2.0, 0.75, 4),
    (8.0, 0.95, 4),
    (2.0, 0.5, 16),
    (2.0, 0.95, 16),
)
"""Round trip ÷ target pass, acceptance, clients: of the places that were also measured over sockets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench plan`."""
    parser.add_argument("--map", type=Path, default=MAP, metavar="FILE", help="what `tools.bench map --live` wrote")


def run(options: argparse.Namespace) -> int:
    """Prints a row for each place."""
    figures = json.loads(options.map.read_text())
    rows = [row(figures, *place) for place in PLACES]
    heads = (
        "trip ÷ pass",
        "right",
        "clients",
        "planned",
        "map",
        "sockets",
        "planned ÷ sockets",
        "gain planned",
        "map's",
    )
    print("\n".join(table(heads, rows)))
    return 0


def row(figures: Mapping[str, Any], ratio: float, right: float, clients: int) -> list[str]:
    """One place, tokens a second of each client."""
    place = Place(
        target_ms=TARGET_MS,
        row_ms=0.0,
        draft_ms=DRAFT_MS,
        leaf_ms=0.0,
        rtt_ms=ratio * TARGET_MS,
        right=right,
        clients=clients,
        workers=clients,
        gateway_draft_ms=DRAFT_MS,
    )
    planned = outcome(place)
    simulated = cell(figures["rows"], ratio, right, clients)
    live = cell(figures["live"], ratio, right, clients)["ours"]["rate"]
    return [
        f"{ratio:g}",
        f"{right:g}",
        str(clients),
        f"{planned.remote:.0f}",
        f"{simulated['ours']:.0f}",
        f"{live:.0f}",
        f"{planned.remote / live:.2f}",
        f"{planned.gain:.2f}",
        f"{simulated['to_alone']:.2f}",
    ]


def cell(cells: list[dict[str, Any]], ratio: float, right: float, clients: int) -> dict[str, Any]:
    """The cell of this place."""
    return next(
        found for found in cells if (found["ratio"], found["acceptance"], found["clients"]) == (ratio, right, clients)
    )
