"""What the client's events say of each phase, and which bounds a flood broke. No processes, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Kind = Literal["control", "flood"]
MAX_RATIO = 1.25
"""Of another key's inter-token latency at p99, with the flood over without it."""
MAX_LOG_KB_PER_MIN = 10.0


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the client: what began at `start` and took `seconds`."""

    kind: str
    start: float
    seconds: float
    why: str = ""

    @classmethod
    def parse(cls, line: str) -> Event:
        """Raises ValueError for a line that was cut off."""
        kind, start, seconds, *why = line.split(maxsplit=3)
        return cls(kind, float(start), float(seconds), *why)


@dataclass(slots=True)
class Window:
    """One measured stretch of a phase. `log_bytes` of the gateway are counted until the next window."""

    kind: Kind
    start: float
    end: float
    log_bytes: int = 0
    cpu_s: float = 0.0
    """Of the gateway's process."""
    loop_s: float = 0.0
    """Of its event loop's thread, where all that comes over the network is handled."""
    others_s: float = 0.0
    """CPU seconds of everything on the machine that is no part of the measurement."""


@dataclass(slots=True)
class Outcome:
    """All that is known of one flood."""

    name: str
    sender: str
    windows: list[Window]
    events: list[Event]
    workers_lost: int = 0
    gateway_ended: bool = False
    pairing: str | None = None
    """Where an honest machine had to be paired meanwhile: `ok`, or why not."""
    error: str | None = None
    """Why it could not be measured."""
    sent: dict[str, int] = field(default_factory=dict)
    attacker_cpu: float = 0.0
    worst_recovery_s: float = 0.0
    """Longest time after a flood until `/healthz` answered quickly again."""


def percentile(values: Sequence[float], q: int) -> float:
    """The nearest rank, 0 to 100; infinity for nothing, as where no token came at all."""
    return float(np.percentile(values or [math.inf], q, method="inverted_cdf"))


def gaps(outcome: Outcome, kind: Kind, what: str = "gap") -> list[float]:
    """Seconds of the events that began in windows of this kind.

    A gap that a completion's failure ends counts as well, so a client that is cut off cannot look fast.
    """
    return [
        event.seconds
        for event in outcome.events
        if event.kind in (what, "fail")
        and any(w.kind == kind and w.start <= event.start < w.end for w in outcome.windows)
    ]


def failures(outcome: Outcome, kind: Kind) -> list[str]:
    """Why completions failed that were under way in windows of this kind."""
    return [
        event.why
        for event in outcome.events
        if event.kind == "fail"
        and any(w.kind == kind and w.start <= event.start + event.seconds < w.end for w in outcome.windows)
    ]


def row(outcome: Outcome) -> dict[str, Any]:
    """The figures of one flood, in JSON types; milliseconds, infinity as None."""
    flood_s = _seconds(outcome, "flood")
    calm, under = gaps(outcome, "control"), gaps(outcome, "flood")
    ratio = percentile(under, 99) / percentile(calm, 99) if calm else math.inf
    found: dict[str, Any] = {
        "flood": outcome.name,
        "sender": outcome.sender,
        "seconds": round(flood_s, 1),
        "control": _summary(calm, gaps(outcome, "control", "first")),
        "under_flood": _summary(under, gaps(outcome, "flood", "first")),
        "p99_ratio": _finite(ratio),
        "failed": {"control": failures(outcome, "control"), "flood": failures(outcome, "flood")},
        "workers_lost": outcome.workers_lost,
        "gateway_ended": outcome.gateway_ended,
        "pairing": outcome.pairing,
        "error": outcome.error,
        "log_kb_per_min": round(_log_kb_per_min(outcome), 1),
        "gateway_cpu": {kind: round(_share(outcome, kind, "cpu_s"), 3) for kind in ("control", "flood")},
        "loop_cpu": {kind: round(_share(outcome, kind, "loop_s"), 3) for kind in ("control", "flood")},
        "others_cpu": {kind: round(_share(outcome, kind, "others_s"), 3) for kind in ("control", "flood")},
        "attacker_cpu": round(outcome.attacker_cpu, 2),
        "recovery_s": round(outcome.worst_recovery_s, 1),
        "sent": outcome.sent,
    }
    return found | {"broken": list(broken(found))}


def broken(found: dict[str, Any], max_ratio: float = MAX_RATIO) -> Iterable[str]:
    """Which bounds do not hold, in words."""
    if found["error"] is not None:
        yield f"not measured: {found['error']}"
    if found["gateway_ended"]:
        yield "the gateway ended"
    if found["p99_ratio"] is None or found["p99_ratio"] > max_ratio:
        yield f"p99 more than {max_ratio:g} times"
    if found["failed"]["flood"]:
        yield "completions failed"
    if found["workers_lost"]:
        yield "a worker was given up"
    if found["log_kb_per_min"] > MAX_LOG_KB_PER_MIN:
        yield f"more than {MAX_LOG_KB_PER_MIN:g} KB of log a minute"
    if found["pairing"] not in (None, "ok"):
        yield "an honest machine could not be paired"


def _summary(gap: Sequence[float], first: Sequence[float]) -> dict[str, Any]:
    return {
        "gaps": len(gap),
        **{f"p{q}_ms": _ms(percentile(gap, q)) for q in (50, 99)},
        "max_ms": _ms(max(gap, default=math.inf)),
        "first_p50_ms": _ms(percentile(first, 50)),
        "first_max_ms": _ms(max(first, default=math.inf)),
    }


def _log_kb_per_min(outcome: Outcome) -> float:
    """What the gateway logged because of the flood: beyond what it logs of the client's own requests in a control.

    A short run gets a whole minute's allowance, since what is logged once a minute may fall into it.
    """
    calm_s, flood_s = _seconds(outcome, "control"), _seconds(outcome, "flood")
    own = _sum(outcome, "control", "log_bytes") * flood_s / calm_s if calm_s else 0.0
    return float(max(_sum(outcome, "flood", "log_bytes") - own, 0) / 1000 / max(1.0, flood_s / 60))


def _share(outcome: Outcome, kind: Kind, what: str) -> float:
    wall = _seconds(outcome, kind)
    return float(_sum(outcome, kind, what)) / wall if wall else 0.0


def _seconds(outcome: Outcome, kind: Kind) -> float:
    return sum(w.end - w.start for w in outcome.windows if w.kind == kind)


def _sum(outcome: Outcome, kind: Kind, what: str) -> Any:
    return sum(getattr(w, what) for w in outcome.windows if w.kind == kind)


def _ms(seconds: float) -> float | None:
    return _finite(1e3 * seconds)


def _finite(value: float) -> float | None:
    return round(value, 2) if math.isfinite(value) else None
