"""The page of the map, docs/results/map.md, written by `python -m tools.results`, and its picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec_lab.sim.plots import headless, save
from tools.bench.map import machine

Figures = Mapping[str, Any]
HEAD = """Tokens a second of a client whose request a worker drafts for, beside the best that the same machine reaches
without workers: plain decoding, chains at their best γ and trees, both with passes batched over all clients, and this
gateway alone. Engines sleep what accelerators were measured to take; engine, policies, protocol and drafting rule are
the shipped ones. Each client has a worker of its own. Each figure is a single run.

The simulated cells run the engine's loop in virtual time, with no host time. The live ones run gateway, proxy and
workers as processes over sockets, with every time as many times as long as the table says, so that hosts which share
two cores with other jobs take a small part of it: `chrt -r 5 python -m tools.bench map --live`.

![Ours over the best co-located arm, by round trip, acceptance and clients](../figures/map.png)
"""
LAW = """## Capacity

*Speculation at a Distance* (arXiv 2606.25091): a full target serves 1 + γ·t_d/t_v times the clients at the same rate
for each if others draft. Co-located: chains of γ whose rows fill a pass up to the compute limit. Round trip 20 ms,
acceptance 0.75. "Same rate": ours ÷ co-located; the goal is 0.9 of the law at 0.95 or more.
"""
LIVE = """## Live and simulated

Ours ÷ the best chain. Rows of scale 1 are not scaled: the hosts' time there, of the gateway and of all workers on the
same two busy cores, is part of every pass of 10 ms. The gateway's own is in the last column.
"""
WHY = """## What limits it

- **One client**, worker ÷ the same gateway without one (`to_alone` in the rows), acceptance 0.5, 0.75, 0.95: round trip
  of 1 pass 1.03, 1.16, 1.18; 2 passes 1.00, 1.05, 1.16; 4 passes 0.98, 0.99, 1.06; 8 passes 0.98, 1.00, 1.02. What is
  below 1 are the tokens that try the worker again.
- **In company and far away** four cells are below 0.98 of the best co-located arm: 0.96 and twice 0.97 with 4 clients,
  0.91 with 16 at eight passes and 0.95, of which the tokens before a worker so far away was tried are counted, too.
- **64 clients** fill a pass of 74 rows by themselves, so that plain decoding is the best co-located arm. The gateway
  without workers decodes plainly there, too ([155](../../dev/decisions/155-shared-rows.md)).
"""


def write(every: Sequence[Figures]) -> str:
    """The page below its head."""
    (figures,) = every
    sources = "\n".join(line for line in (machine.__doc__ or "").splitlines() if line.startswith("|"))
    parts = [HEAD, sources, "A pass takes the same time up to the limit, and grows with its rows beyond it.",
             _kinds(figures), LAW, _capacity(figures["capacity"]), LIVE, _live(figures), WHY]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts)


def _kinds(figures: Figures) -> str:
    """What remote drafting wins at each round trip and acceptance."""
    rows = figures["rows"]
    ratios, rates = (sorted({row[name] for row in rows}) for name in ("ratio", "acceptance"))
    at = {(row["acceptance"], row["ratio"]): row["kind"] for row in rows}
    below = f"Ours is below 0.98 of the best chain in {figures['below']} of {len(rows)} cells."
    return "\n".join([
        "## Where it wins", "",
        "By round trip ÷ target pass. *Latency*: a lone client is faster, by 5 % or more, than with any co-located",
        "arm; *capacity*: only clients in company are; *nowhere*: neither.", "",
        *table(("acceptance", *(f"{ratio:g}" for ratio in ratios)),
               [(rate, *(at.get((rate, ratio), "") for ratio in ratios)) for rate in rates]),
        "", below,
    ])  # fmt: skip


def _capacity(every: Sequence[Figures]) -> str:
    head = ("γ", "rows at the limit", "co-located clients", "ours", "ratio", "law", "workers", "same rate", "live")
    rows = []
    for one in every:
        live = f"{one['live']['same']:.2f}" if "live" in one else ""
        few, many = one["clients"]
        same = f"{one['simulated']['same']:.2f}"
        rows.append((one["gamma"], one["limit"], few, many, one["ratio"], one["law"], one["workers"], same, live))

    return "\n".join(table(head, rows))


def _live(figures: Figures) -> str:
    head = ("round trip ÷ pass", "acceptance", "clients", "scale", "live", "simulated", "points", "host µs a request")
    rows = [
        (f"{one['ratio']:g}", one["acceptance"], one["clients"], f"{one['scale']:g}", f"{one['live']:.2f}",
         f"{one['simulated']:.2f}", f"{one['points']:+.0f}", f"{one['ours']['host_us']:.0f}")
        for one in figures["live"]
    ]  # fmt: skip
    near, scaled = figures["within"]
    return "\n".join([*table(head, rows), "", f"Within 7 points: {near} of {scaled} scaled cells."])


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of Markdown."""
    return [f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * len(head), *rows)]


READABLE = 1.3
"""A cell above it is too dark for black figures."""


def draw(report: Mapping[str, Any], out: Path) -> None:
    """Writes the picture beside OUT."""
    rows = report["rows"]
    loads, ratios, rates = (sorted({row[name] for row in rows}) for name in ("clients", "ratio", "acceptance"))
    figure, panels = headless().subplots(1, len(loads), figsize=(13, 3.4), sharey=True, layout="constrained")
    for axes, clients in zip(panels, loads, strict=True):
        at = {(row["acceptance"], row["ratio"]): row for row in rows if row["clients"] == clients}
        grid = [[at.get((rate, ratio), {}).get("to_best", math.nan) for ratio in ratios] for rate in rates]
        shown = axes.imshow(grid, origin="lower", cmap="RdBu", vmin=0.5, vmax=1.5, aspect="auto")
        for y, line in enumerate(grid):
            for x, value in enumerate(line):
                shown_as = "" if math.isnan(value) else f"{value:.2f}"
                colour = "white" if value > READABLE else "black"
                axes.text(x, y, shown_as, ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios])
        axes.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.set_title(f"{clients} client{'s' * (clients > 1)}", fontsize=9)
    panels[0].set_ylabel("acceptance")
    figure.supxlabel("round trip ÷ target pass", fontsize=9)
    figure.colorbar(shown, ax=panels)
    save(figure, out, "Tokens a second of a client: with workers ÷ the best co-located arm (blue: remote wins)")
