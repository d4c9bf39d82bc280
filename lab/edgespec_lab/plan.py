"""`edgespec plan`: what a worker would bring, from the times of target, draft and link.

The shipped engine and policy run in virtual time, with a gateway and workers that take the times given. Drafted tokens
are right with one probability, independently of each other, and the host's own time is left out: real drafts are right
in runs, and a CPU has other work, so that a measurement (`edgespec tune`, `edgespec demo`) may say less.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec_lab import options as checked

if TYPE_CHECKING:
    from rich.console import Console

ROUND_TRIPS_MS = (1.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""The round trips of the plot, beside the one that is asked for."""
RIGHT = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Shares of right drafts of which the least that pays is looked for."""
PAYS = 1.05
"""Tokens a second with a worker, for one without, from which on it is worth its machine."""
ROW_SHARE = 0.02
LEAF_SHARE = 0.05
"""The share of a pass that a further row adds, and of a draft step that a further leaf adds, if it is not given."""
MAX_ROWS = 4096
LEAVES = 16
"""Of one request in a worker's step, at most: its default (`draft.sequences`)."""
TOKENS = {1: (48, 300), 8: (24, 80), 64: (12, 24)}
"""By the most clients: tokens of each before the measurement, in which estimates settle, and tokens measured."""
BAR = 40
"""Characters of the longest bar."""


@dataclass(frozen=True)
class Place:
    """Machines and the path between them. Times in milliseconds."""

    target_ms: float
    """A pass of the target over one token."""
    row_ms: float
    """The time that each further row adds to it."""
    draft_ms: float
    """A step of the worker's draft, at one leaf."""
    leaf_ms: float
    rtt_ms: float
    right: float
    """Probability that a drafted token is the target's."""
    clients: int
    """Completions that run at the same time."""
    workers: int
    gateway_draft_ms: float | None = None
    """A step of the gateway's own draft; None: it has none."""

    @property
    def shared_by(self) -> int:
        """Requests for which one worker drafts, in one step together."""
        return math.ceil(self.clients / self.workers)


@dataclass(frozen=True)
class Outcome:
    """Tokens a second at a place, without a worker and with one."""

    clients: int
    rtt_ms: float
    right: float
    alone: float
    """Tokens a second of each client, without a worker."""
    remote: float
    """The same with one."""
    tokens_per_pass: float
    """Tokens of one client in a pass, with a worker."""

    @property
    def gain(self) -> float:
        """Times as fast as without a worker."""
        return self.remote / self.alone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `edgespec plan`."""
    parser.set_defaults(run=run_command)
    ms = checked.number(float, 0.01, 60_000)
    parser.add_argument("--target-ms", type=ms, required=True, metavar="MS", help="the target's pass over one token")
    parser.add_argument("--draft-ms", type=ms, required=True, metavar="MS", help="a step of the worker's draft")
    parser.add_argument(
        "--rtt-ms", type=checked.number(float, 0, 60_000), required=True, metavar="MS", help="the round trip"
    )
    parser.add_argument(
        "--right", type=checked.number(float, 0.01, 0.999), required=True, metavar="SHARE", help="of drafted tokens"
    )
    parser.add_argument(
        "--clients", type=checked.several(checked.number(int, 1, 64)), default=(1,), metavar="N[,N]",
        help="completions at the same time (default: 1)",
    )  # fmt: skip
    parser.add_argument("--workers", type=checked.number(int, 1, 64), default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--row-ms", type=checked.number(float, 0, 60_000), metavar="MS",
        help=f"what a further row adds to the target's pass (default: {ROW_SHARE:.0%} of it; a GPU below its compute "
        "limit: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--leaf-ms", type=checked.number(float, 0, 60_000), metavar="MS",
        help=f"what a further leaf adds to the draft's step (default: {LEAF_SHARE:.0%} of it)",
    )  # fmt: skip
    parser.add_argument("--gateway-draft-ms", type=ms, metavar="MS", help="a step of the gateway's own draft, if any")
    parser.add_argument("--svg", type=checked.output, metavar="FILE", help="write the plot as SVG")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_command(options: argparse.Namespace) -> int:
    """Prints a table, a plot and a verdict; 0 in any case."""
    from edgespec_lab import verbs

    place = place_of(options)
    console = verbs.console()
    with console.status("simulating"):
        by_clients = [outcome(replace(place, clients=clients)) for clients in options.clients]
        trips = sorted({*ROUND_TRIPS_MS, place.rtt_ms})
        by_trip = [outcome(replace(place, rtt_ms=rtt_ms)) for rtt_ms in trips]
        least = least_right(place)

    if options.svg is not None:
        draw(by_trip, place, options.svg)
    if options.json:
        rows = {"clients": by_clients, "round_trips": by_trip}
        shown = {name: [asdict(row) | {"gain": round(row.gain, 4)} for row in found] for name, found in rows.items()}
        print(json.dumps({"place": asdict(place), **shown, "least_right": least}, indent=1))
    else:
        show(console, place, by_clients, by_trip, least)
    return 0


def place_of(options: argparse.Namespace) -> Place:
    """The place of the options, with the first number of clients."""
    return Place(
        target_ms=options.target_ms,
        row_ms=ROW_SHARE * options.target_ms if options.row_ms is None else options.row_ms,
        draft_ms=options.draft_ms,
        leaf_ms=LEAF_SHARE * options.draft_ms if options.leaf_ms is None else options.leaf_ms,
        rtt_ms=options.rtt_ms,
        right=options.right,
        clients=options.clients[0],
        workers=options.workers,
        gateway_draft_ms=options.gateway_draft_ms,
    )


def outcome(place: Place) -> Outcome:
    """Both arms at a place, on the same completions."""
    from cloud_gateway.core.policies.settings import PolicySettings
    from edgespec_lab.sim import virtual
    from edgespec_lab.sim.live.setting import Setting

    skipped, counted = next(tokens for most, tokens in TOKENS.items() if place.clients <= most)
    gateway_ms = place.gateway_draft_ms or place.draft_ms
    setting = Setting(
        verify_ms=linear(place.target_ms, place.row_ms),
        draft_ms=linear(gateway_ms, LEAF_SHARE * gateway_ms),
        worker_ms=linear(place.draft_ms, place.leaf_ms, place.shared_by),
        tokens={"match": place.right},
        draft="",
        length=4 * (skipped + counted),
        rtt_ms=place.rtt_ms,
        policy=PolicySettings(),
        rule="bestfirst",
        branching=4,
        sequences=LEAVES,
        workers=place.clients,
    )
    drafts_here = place.gateway_draft_ms is not None
    alone = virtual.measure(setting, 0, place.clients, skipped, counted, drafts_here=drafts_here)
    remote = virtual.measure(setting, place.clients, place.clients, skipped, counted, drafts_here=drafts_here)
    return Outcome(
        place.clients, place.rtt_ms, place.right, alone["rate"], remote["rate"],
        remote["tokens_per_pass"] / place.clients,
    )  # fmt: skip


def linear(first_ms: float, more_ms: float, together: int = 1) -> dict[int, float]:
    """A pass's milliseconds by its rows, if so many requests with as many rows each share it."""
    return {rows: first_ms + more_ms * (together * rows - 1) for rows in (1, MAX_ROWS)}


def least_right(place: Place) -> float | None:
    """The least share of right drafts of RIGHT with which a worker pays; None: it does with none of them."""
    for right in RIGHT:
        if outcome(replace(place, right=right)).gain >= PAYS:
            return right
    return None


def farthest(by_trip: Sequence[Outcome]) -> float | None:
    """The longest round trip up to which a worker pays at each; None: it does not at the shortest."""
    found: float | None = None
    for row in by_trip:
        if row.gain < PAYS:
            break
        found = row.rtt_ms
    return found


def verdict(place: Place, by_clients: Sequence[Outcome], by_trip: Sequence[Outcome], least: float | None) -> list[str]:
    """The advice, in sentences."""
    sentences: list[str] = []
    for row in by_clients:
        who = "A lone client" if row.clients == 1 else f"Each of {row.clients} clients"
        if row.gain >= PAYS:
            sentences.append(f"{who} gets {row.gain:.2f} times as many tokens a second with a worker.")
        else:
            sentences.append(f"{who} gets {row.gain:.2f} times as many: do not use a worker for this load.")

    reach = farthest(by_trip)
    if reach is None:
        sentences.append("No round trip is short enough for it.")
    elif reach == by_trip[-1].rtt_ms:
        sentences.append(f"It pays up to {reach:g} ms away, and perhaps beyond.")
    else:
        sentences.append(f"It pays up to {reach:g} ms away, of the round trips below.")

    if least is None:
        sentences.append(
            f"At {place.rtt_ms:g} ms no share of right drafts is enough: the draft has to be faster, or nearer."
        )
    else:
        sentences.append(f"At {place.rtt_ms:g} ms drafts have to be right about {least:g} of the time.")
    return sentences


def show(
    console: Console, place: Place, by_clients: Sequence[Outcome], by_trip: Sequence[Outcome], least: float | None
) -> None:
    """Table, plot and verdict on the terminal."""
    from rich.table import Table

    own = "no draft" if place.gateway_draft_ms is None else f"a draft of {place.gateway_draft_ms:g} ms a step"
    table = Table(title=f"Simulated; alone, the gateway has {own} of its own")
    for head in ("clients", "alone, tokens/s", "with a worker", "times as fast", "tokens a pass"):
        table.add_column(head, justify="right")
    for row in by_clients:
        table.add_row(
            str(row.clients), f"{row.alone:.1f}", f"{row.remote:.1f}", f"{row.gain:.2f}", f"{row.tokens_per_pass:.2f}"
        )
    console.print(table)
    for line in bars(by_trip):
        console.print(line, highlight=False)
    console.print()
    for sentence in verdict(place, by_clients, by_trip, least):
        console.print(sentence, highlight=False)


def bars(by_trip: Sequence[Outcome]) -> Iterator[str]:
    """The gain as a bar for each round trip; a mark shows the length of no gain."""
    longest = max(1.0, *(row.gain for row in by_trip))
    none = round(BAR / longest)
    for row in by_trip:
        bar = "█" * round(BAR * row.gain / longest)
        marked = bar.ljust(BAR) if len(bar) >= none else bar.ljust(none - 1) + "│"
        yield f"{row.rtt_ms:6g} ms  {marked.ljust(BAR)}  {row.gain:.2f}"


def draw(by_trip: Sequence[Outcome], place: Place, out: Path) -> None:
    """The same plot as a file. Raises ConfigError if it cannot be written."""
    from edgespec_lab.sim import plots

    pyplot = plots.headless()
    figure, axis = pyplot.subplots(figsize=(6.4, 3.6))
    axis.plot([row.rtt_ms for row in by_trip], [row.gain for row in by_trip], marker="o", linewidth=1.3)
    axis.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
    axis.axvline(place.rtt_ms, color="grey", linewidth=0.8, linestyle=":")
    axis.set_xscale("log")
    axis.set_xlabel("round trip time (ms)")
    axis.set_ylabel("tokens a second, with ÷ without")
    axis.grid(alpha=0.25)
    figure.savefig(out, format="svg", bbox_inches="tight")
