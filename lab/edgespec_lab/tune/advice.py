"""What `edgespec tune` recommends, from what it measured: pure, each setting with its reason in figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from edgespec.core.numbers import interpolate

PAYS = 0.97
"""A source pays if it takes at most this share of the time without it: less is within what runs differ by."""
MAX_BUSY = 0.3
"""Above it times say more of the other programs than of the models."""
# The lab advises for a gateway without the part that brings the last two, too.
SOURCES: tuple[str, ...] = ("lookup", "medusa", "eagle")
"""Arms without a draft model, named as in `policy.sources`."""
# The value of `local_draft.model` for the target's own layers; the lab advises for a gateway without that part, too.
SELF: Final = "self"
DRAFTED = ("colocated", "draft", "merge", SELF)
"""Arms with a draft model."""
IN_TURN = "in-turn"
MAX_K = 8
WIDTHS = (4, 8, 16, 32)
"""Candidates of a pass that are compared."""
MAX_PASS = 1.5
"""A pass over all candidates may take so many times that over one row."""
LEVELS_AFTER_DIVERGENCE = 1.5
"""Draft steps beside the round trip until a worker that was wrong is useful again (docs/policies.md)."""


class Measured(Struct, frozen=True, kw_only=True):
    """Measurements of this machine. Times in milliseconds."""

    arms: Mapping[str, float]
    """Whole completion, per token, by arm: those of `arms_with` (arms.py) that ran."""
    write_s: float | None = None
    """Seconds in which the local draft wrote an answer of the arm `answers`."""
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
    key: str
    value: str | int | list[str] | list[int]
    why: str


def caution(measured: Measured) -> str | None:
    """Why the figures may mislead, for the operator; None if nothing disturbed them."""
    if measured.busy <= MAX_BUSY:
        return None
    return f"Other programs kept {measured.busy:.1f} times this machine's cores busy; measure again while it is quiet."


def queued(measured: Measured) -> str | None:
    """When answers written in the queue pay, for the operator; None if none was measured."""
    arms = measured.arms
    written = measured.write_s
    if "answers" not in arms or written is None:
        return None

    best = _least(arms, ("plain", *SOURCES, *DRAFTED))
    assert best is not None
    times = f"with one {arms['answers']:.1f} ms per token, without it {arms[best]:.1f} ({best})"
    if arms["answers"] > PAYS * arms[best]:
        return f"Queued answers do not pay here: {times}."

    from cloud_gateway.parts.queued_answers.local import REST  # the part is there: the arm ran

    long_s = (1 + REST) * written
    return (
        f"Queued answers (`sources.queued_answers`, source `answers`) pay for requests that wait {long_s:.1f} s or "
        f"longer for a slot: {times}. Writing them takes up to a quarter of the time of running requests."
    )


def recommend(measured: Measured, model: str, mode: str = IN_TURN) -> list[Advice]:
    """Settings of gateway.toml, most important first; `model`, `mode`: the local draft that was measured, "" for none,
    and its configured mode."""
    arms = measured.arms
    plain = measured.arms["plain"]
    drafted = _least(arms, DRAFTED)
    without = _least(arms, ("plain", *SOURCES))
    assert without is not None
    draft_pays = drafted is not None and arms[drafted] <= PAYS * arms[without]
    paying = [name for name in SOURCES if arms.get(name, plain) <= PAYS * plain]
    fastest = drafted if drafted is not None and arms[drafted] < arms[without] else without
    draft = _draft(measured, model, drafted, without, draft_pays)
    found = [draft, _sources(arms, paying)]
    if mode != IN_TURN and draft.value in ("", SELF):
        why = "there is no draft for a process of its own"
        found[1:1] = [Advice("local_draft.mode", IN_TURN, why), Advice("local_draft.cpu", [], why)]
    worker = _worker(measured) if model != SELF else None
    name = "adaptive" if draft_pays or paying or worker is not None else "plain"
    best = arms[fastest]
    why = f"{best:.1f} ms per token where plain decoding takes {plain:.1f}" if name != "plain" else "nothing pays here"
    found.insert(0, Advice("policy.name", name, why))
    if worker is not None:
        prefer = "offload" if worker <= best else "balanced"
        pace = f"a worker alone would take about {worker:.1f} ms"
        found.append(Advice("policy.prefer", prefer, f"{pace} per token at a round trip of {measured.rtt_ms:.0f} ms"))
    elif draft_pays:
        found.append(Advice("policy.prefer", "latency", "there is no other worker to spare the local draft for"))
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
    """Milliseconds per token with the same draft at a worker, none drafted here; None if that gains nothing."""
    if measured.rtt_ms is None or measured.step_ms is None or measured.match is None:
        return None

    plain = measured.pass_ms[1]
    step = measured.step_ms
    recovery = measured.rtt_ms + LEVELS_AFTER_DIVERGENCE * step  # plain decoding goes on meanwhile
    pace = min(step + (1 - measured.match) * recovery, plain)
    if pace <= PAYS * plain:
        return pace

    return None


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
