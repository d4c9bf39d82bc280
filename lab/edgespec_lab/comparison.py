"""Tries policies on a traced completion, in the simulator, at the passes and the link that the trace shows.

The policy that was recorded is simulated too, so that each other one is compared with it under equal conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from cloud_gateway.core.policies.registry import Policies, make
from cloud_gateway.core.policies.settings import Phi, PolicySettings
from cloud_gateway.core.requests.request import Speculation
from cloud_gateway.parts.request_traces.format import TraceError
from cloud_gateway.parts.request_traces.look import Looked
from edgespec.core.drafting.algorithm2 import Drafting
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim.from_trace import Traced
from edgespec_lab.sim.world import Result, run

FILLINGS = 8
"""Ways of filling what the trace leaves open; figures are means over them."""
PROMPT_LEN = 2
"""Of the simulated request: the prompt is behind it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One policy with its parameters."""

    kind: str
    """`recorded` as it ran, `simulated` for the recorded policy, else `tried`."""
    policy: str
    k: int | None
    phi: Phi | None
    rtt_ms: float | None
    ms_per_token: float
    passes: float
    local_passes: float
    ratio: float
    """Of the milliseconds per token, to the recorded policy in the same simulation."""

    def cells(self) -> list[str]:
        said = {"recorded": " as it ran", "simulated": " simulated", "tried": ""}[self.kind]
        return [
            self.policy + said,
            "" if self.k is None else str(self.k),
            shown(self.phi),
            "" if self.rtt_ms is None else f"{self.rtt_ms:.1f}",
            f"{self.ms_per_token:.1f}",
            f"{self.passes:.4g}",
            f"{self.local_passes:.4g}",
            f"{self.ratio:.2f}",
        ]


@dataclass(frozen=True, slots=True)
class Compared:
    """The table of one trace."""

    looked: Looked
    tokens: int
    skipped: int
    """Tokens before them, while the worker read the prompt."""
    known: float
    ran: Row
    """What was measured."""
    rows: Sequence[Row]
    """Simulated; the recorded policy first."""

    def row(self) -> dict[str, Any]:
        figures = {"tokens": self.tokens, "skipped": self.skipped, "known": round(self.known, 4)}
        return {"file": str(self.looked.path), **figures, "rows": [asdict(row) for row in (self.ran, *self.rows)]}

    def show(self) -> None:
        console = Console(markup=False)
        since = " after the worker had read the prompt" if self.skipped else ""
        table = RichTable(title=f"{self.looked.path.name}: {self.tokens} tokens{since}")
        for column in ("policy", "k", "phi", "rtt ms", "ms/token", "passes", "drafts here", "ratio"):
            table.add_column(column, justify="left" if column == "policy" else "right")
        for row in (self.ran, *self.rows):
            table.add_row(*row.cells())
        console.print(table)
        console.print(
            "Ratios are to the recorded policy in the same simulation. An estimate: the draft's tokens were recorded "
            f"for {self.known:.0%} of the positions; elsewhere they are drawn from the others (means of {FILLINGS} "
            "fillings). A policy that wants wider proposals than were recorded finds none.",
            highlight=False,
        )


def compare(looked: Looked, choices: Sequence[Mapping[str, Any]], seed: int) -> Compared:
    """The recorded policy and each one chosen, on the same answers. Raises TraceError with the file's name."""
    header = looked.trace.header
    try:
        traced = Traced(looked.trace, looked.policies)
        base = _try(traced, header.settings, looked.policies, None, seed)
        rows = [replace(base, kind="simulated")]
        seen = {_key(base)}
        for choice in choices:
            asked = Speculation(policy=choice["policy"], k=choice["k"], phi=choice["phi"])
            row = _try(traced, asked.over(header.settings), looked.policies, choice["rtt_ms"], seed)
            if _key(row) not in seen:
                seen.add(_key(row))
                rows.append(replace(row, ratio=row.ms_per_token / base.ms_per_token))
    except TraceError as error:
        raise TraceError(f"{looked.path}: {error}") from None
    measured = traced.ms_per_token
    ran = replace(
        base, kind="recorded", ms_per_token=measured, passes=traced.passes, local_passes=traced.local_passes,
        ratio=measured / base.ms_per_token,
    )  # fmt: skip
    return Compared(looked, traced.tokens, traced.start.tokens, traced.known, ran, rows)


def shown(phi: Phi | None) -> str:
    """A phi in words; empty for a policy that takes none."""
    if phi is None:
        return ""
    return phi if isinstance(phi, str) else f"{phi:g}"


def _key(row: Row) -> tuple[object, ...]:
    return row.policy, row.k, row.phi, row.rtt_ms


def _try(traced: Traced, settings: PolicySettings, policies: Policies, rtt_ms: float | None, seed: int) -> Row:
    kind = make(settings, policies=policies)
    alone = not kind.asks_workers
    net = LinkModel(0.0) if alone else traced.net(None if rtt_ms is None else rtt_ms / 1000)
    ahead_s = 0.0 if alone else traced.ahead_s
    results: list[Result] = []
    for filling in range(FILLINGS):
        drafting = [] if alone else [Drafting(1, 1, PROMPT_LEN, traced.rule())]
        process = traced.process(seed * FILLINGS + filling)
        controller = make(settings, policies=policies)
        results.append(run(controller, drafting, process, net, traced.steps, traced.tokens, filling, ahead_s=ahead_s))
    k = settings.k if kind.uses_k else None
    phi = settings.phi if kind.uses_phi else None
    rtt = None if alone else round(net.rtt_s * 1000, 3)
    return Row(
        "tried", settings.name, k, phi, rtt,
        mean(r.seconds for r in results) * 1000 / traced.tokens,
        mean(r.rounds for r in results), mean(r.local_passes for r in results), 1.0,
    )  # fmt: skip
