"""`python -m tools.entropy TRACE ...`: what the target's entropy says about where the worker is.

A case is a walk that ends at an open leaf while the worker drafts: the target has chosen a token that no frame has
shown yet (WANSpec 4.2, 4.3). Frames that the worker made before it could know that token answer the case: one of them
holds the token, or none does. Both estimates predict each case from those before it, in the order of the traces: one
rate for all, and one for each range of the entropy, which begins at the rate for all.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from cloud_gateway.core.requests.events import Send
from cloud_gateway.core.trace import format as trace
from cloud_gateway.core.trace.format import Trace
from cloud_gateway.core.trace.play import Moment, Player
from tools import options as checked
from tools import verbs

EDGES = (0.1, 0.5, 1.0, 2.0)
"""Nats between the ranges."""
STRENGTH = 4.0
"""Cases that the rate for all weighs as, in each range."""


@dataclass(frozen=True, slots=True)
class Case:
    """One open leaf."""

    entropy: float
    """Nats, of the target at the row that chose the token."""
    on_path: bool


def cases(recorded: Trace) -> Iterator[Case]:
    """Those of one completion that frames answered. Raises TraceError."""
    player, open_at, seen = Player(recorded), None, list[bool]()
    for moment in player.play():
        match moment.event:
            case trace.Frame(prefix_len=length) if open_at is not None and length < open_at[0]:
                seen.append(moment.taken is not None and moment.taken.useful)
            case trace.Verified(entropies=entropies):
                if open_at is not None and seen:
                    yield Case(open_at[1], any(seen))
                seen, length = [], player.tree.root.position + 1
                open_at = (length, entropies[-1]) if _at_open_leaf(player, moment) else None


def _at_open_leaf(player: Player, moment: Moment) -> bool:
    """Whether a worker drafts that has not left the path as far as its frames show."""
    diverged = any(isinstance(effect, Send) and effect.diverged for effect in moment.effects)
    return player.link is not None and player.link.ready and not diverged


@dataclass(slots=True)
class Rate:
    """How often a case was on the path, beginning at another rate."""

    right: float = 0.0
    of: float = 0.0

    def chance(self, prior: float) -> float:
        """Of the next case."""
        return (self.right + STRENGTH * prior) / (self.of + STRENGTH)

    def add(self, on_path: bool) -> None:
        """Counts a case."""
        self.right += on_path
        self.of += 1


def study(found: Sequence[Case]) -> dict[str, Any]:
    """Cases by range of the entropy, and nats that either estimate loses a case."""
    every, ranges = Rate(), [Rate() for _ in range(len(EDGES) + 1)]
    losses: tuple[list[float], list[float]] = ([], [])
    for case in found:
        own = ranges[sum(case.entropy > edge for edge in EDGES)]
        constant = every.chance(0.5)
        for loss, chance in zip(losses, (constant, own.chance(constant)), strict=True):
            loss.append(-math.log(chance if case.on_path else 1 - chance))
        every.add(case.on_path)
        own.add(case.on_path)
    names = [f"to {edge:g}" for edge in EDGES] + [f"above {EDGES[-1]:g}"]
    return {
        "cases": len(found),
        "on_path": round(every.right / max(every.of, 1), 3),
        "ranges": {name: f"{one.right:.0f} of {one.of:.0f}" for name, one in zip(names, ranges, strict=True)},
        "loss": {
            name: round(mean(loss), 4) if loss else None
            for name, loss in zip(("constant", "entropy"), losses, strict=True)
        },
        "area": area(found),
    }


def area(found: Sequence[Case]) -> float | None:
    """Of the curve of hits over false alarms, where a high entropy says "off the path": 0.5 is chance."""
    off = [case.entropy for case in found if not case.on_path]
    on = [case.entropy for case in found if case.on_path]
    if not (off and on):
        return None
    above = sum((high > low) + (high == low) / 2 for high in off for low in on)
    return round(above / (len(off) * len(on)), 3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.entropy", description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="of one worker and draft, in their order")
    parser.add_argument("--json", type=checked.output, metavar="OUT", help="write the figures here")
    parser.set_defaults(run=show)
    return verbs.run(parser, arguments)


def show(options: argparse.Namespace) -> int:
    """Prints the study. Raises EdgespecError."""
    found = study([case for path in options.traces for case in cases(trace.unseal(path.read_bytes())[0])])
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")
    ranges = ", ".join(f"{name} nats {count}" for name, count in found["ranges"].items())
    print(f"{found['cases']} open leaves, worker on the path in {found['on_path']}: {ranges}")
    losses = ", ".join(f"{name} {loss}" for name, loss in found["loss"].items())
    print(f"nats lost a case: {losses}; area under the curve {found['area']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
