"""What `edgespec tune` recommends, from what it measured: pure, each setting with its reason in figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from cloud_gateway.process.config import SELF
from edgespec.core.numbers import interpolate

PAYS = 0.97
"""A source pays where it takes at most this share of the time without it: less is within what runs differ by."""
MAX_BUSY = 0.3
"""Above it times say more of the other programs than of the models."""
SOURCES = ("lookup", "medusa", "eagle")
"""Arms without a draft model, named as in `policy.sources`."""
MAX_K = 8
WIDTHS = (4, 8, 16, 32)
"""Candidates of a pass that are compared."""
MAX_PASS = 1.5
"""A pass over all candidates may take so many times that over one row."""
LEVELS_AFTER_DIVERGENCE = 1.5
"""Draft steps beside the round trip until a worker that was wrong is useful again (docs/policies.md)."""


class Measured(Struct, frozen=True, kw_only=True):
    """What was measured on this machine. Times in milliseconds."""

    arms: Mapping[str, float]
    """Whole completion, per token, by arm: those of `ARMS` (arms.py) that ran."""
    match: float | None
    """Share of the draft's tokens that were the target's; None without a draft."""
    pass_ms: Mapping[int, float]
    """A pass of the target by its rows."""
    step_ms: float | None
    """A step of the draft over one leaf."""
    read_ms: float | None = None
    """The draft reading one token of a prompt."""
    busy: float = 0.0
    """Programs that ran for each core before the measurement began."""
    rtt_ms: float | None = None
    """Round trip of the link to workers; None: there is none."""
    accepted: Mapping[str, float] = {}
    """Share of the candidates verified that the target emitted too, by arm; arms that verified none are left out."""


class Advice(Struct, frozen=True):
    """One setting."""

    key: str
    value: str | int | list[str]
    why: str


def caution(measured: Measured) -> str | None:
    """Why the figures may mislead, for the operator; None where nothing disturbed them."""
    if measured.busy <= MAX_BUSY:
        return None
    return f"Other programs kept {measured.busy:.1f} times this machine's cores busy; measure again while it is quiet."


def recommend(measured: Measured, model: str) -> list[Advice]:
    """Settings of gateway.toml, most important first; `model`: the local draft that was measured, "" for none."""
    arms, plain = measured.arms, measured.arms["plain"]
    drafted = _least(arms, ("colocated", "draft", "merge", SELF))
    without = _least(arms, ("plain", *SOURCES))
    assert without is not None
    draft_pays = drafted is not None and arms[drafted] <= PAYS * arms[without]
    paying = [name for name in SOURCES if arms.get(name, plain) <= PAYS * plain]
    found = [_draft(measured, model, drafted, without, draft_pays), _sources(arms, paying)]
    worker = _worker(measured) if model != SELF else None
    name = "adaptive" if draft_pays or paying or worker is not None else "plain"
    best = min(arms[without], arms[drafted] if drafted else plain)
    why = f"{best:.1f} ms per token where plain decoding takes {plain:.1f}" if name != "plain" else "nothing pays here"
    found.insert(0, Advice("policy.name", name, why))
    if worker is not None:
        prefer, pace = ("offload" if worker <= best else "balanced"), f"a worker alone would take about {worker:.1f} ms"
        found.append(Advice("policy.prefer", prefer, f"{pace} per token at a round trip of {measured.rtt_ms:.0f} ms"))
    elif draft_pays:
        found.append(Advice("policy.prefer", "latency", "there is no worker to spare the local draft for"))
    if draft_pays and drafted != SELF and measured.match is not None and measured.step_ms is not None:
        found.append(_k(measured.match, measured.step_ms, measured.pass_ms))
    return [*found, _width(measured.pass_ms)]


def _draft(measured: Measured, model: str, drafted: str | None, without: str, pays: bool) -> Advice:
    if drafted is None:
        return Advice("local_draft.model", "", "no draft was measured")
    arms = measured.arms
    times = f"with it {arms[drafted]:.1f} ms per token ({drafted}), without {arms[without]:.1f} ({without})"
    local = drafted != SELF  # match and step are those of the local draft
    right = f"; it is right {measured.match:.0%} of the time" if local and measured.match is not None else ""
    cost = f", a step takes {measured.step_ms:.1f} ms" if local and measured.step_ms is not None else ""
    why = f"{'' if pays else 'no draft pays here: '}{times}{right}{cost}"
    return Advice("local_draft.model", (model if local else SELF) if pays else "", why)


def _sources(arms: Mapping[str, float], paying: list[str]) -> Advice:
    times = [f"{name} alone takes {arms[name]:.1f} ms per token" for name in SOURCES if name in arms]
    why = ", ".join([*times, f"plain decoding {arms['plain']:.1f}"]) if times else "no source was measured"
    return Advice("policy.sources", paying, why)


def _worker(measured: Measured) -> float | None:
    """Milliseconds per token with the same draft at a worker, none drafted here; None where that gains nothing."""
    if measured.rtt_ms is None or measured.step_ms is None or measured.match is None:
        return None
    plain, step = measured.pass_ms[1], measured.step_ms
    recovery = measured.rtt_ms + LEVELS_AFTER_DIVERGENCE * step  # plain decoding goes on meanwhile
    pace = min(step + (1 - measured.match) * recovery, plain)
    return pace if pace <= PAYS * plain else None


def _k(match: float, step_ms: float, pass_ms: Mapping[int, float]) -> Advice:
    def per_token(k: int) -> float:
        return (k * step_ms + _at(pass_ms, 1 + k)) / sum(match**level for level in range(k + 1))

    k = min(range(1, MAX_K + 1), key=per_token)
    return Advice(
        "policy.k", k, f"for the policies with a k: {per_token(k):.1f} ms per token, {per_token(1):.1f} at k = 1"
    )


def _width(pass_ms: Mapping[int, float]) -> Advice:
    widths = [width for width in WIDTHS if _at(pass_ms, 1 + width) <= MAX_PASS * pass_ms[1]]
    width = max(widths, default=WIDTHS[0])
    why = f"a pass over {width} candidates takes {_at(pass_ms, 1 + width):.1f} ms, over none {pass_ms[1]:.1f}"
    return Advice("policy.verify_nodes", width, why)


def _at(pass_ms: Mapping[int, float], rows: int) -> float:
    return interpolate(pass_ms, rows)


def _least(arms: Mapping[str, float], names: Sequence[str]) -> str | None:
    return min((name for name in names if name in arms), key=lambda name: arms[name], default=None)
