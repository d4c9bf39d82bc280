"""The cluster post's tables, the overview's formula and AMUSD's table, from closed forms and from the policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.core.protocol.messages import ROOT, Commit, Frame, Tree, encode
from edgespec_lab.link_model import LinkModel
from edgespec_lab.markdown import table as markdown
from edgespec_lab.sim import plots
from edgespec_lab.sim.config import load, steps_of
from edgespec_lab.sim.experiment import Arm, Cell, Row, Simulator, WorkerSpec, rows_of
from edgespec_lab.sim.network import wire_bytes
from edgespec_lab.sim.theory import (
    best_k,
    expected_accepted,
    expected_tokens,
    printed_overview,
    speedup,
)
from edgespec_lab.sim.tokens import Iid
from edgespec_lab.sim.world import SESSION

ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SCAN = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
CHAIN = WorkerSpec(branching=1, theta=0.0, sequences=1)


def tables(out: Path, simulator: Simulator, runs: int | None = None) -> dict[str, Any]:
    """Everything that the post tabulates, ours beside the printed figure; and `rolling-k` against the best fixed k."""
    config = load("cluster")
    want = config["run"]
    steps = steps_of(config)
    verify = steps.verify(1) * 1000
    draft = steps.worker(1) * 1000
    network = want["rtt_ms"]

    def gain(alpha: float, k: int) -> float:
        return speedup(alpha, k, draft, verify, network)

    found = {
        "expected_tokens": _beside(config["expected"], "k", expected_tokens),
        "speedup": _beside(config["speedup"], "alpha", lambda k, alpha: gain(alpha, int(k))),
        "best_k": {alpha: best_k(alpha, draft, verify, network) for alpha in ALPHAS},
        "best_k_draft_twice_as_slow": {alpha: best_k(alpha, 2 * draft, verify, network) for alpha in ALPHAS},
        "bytes_per_round": transfer(config["transfer"]["k"], config["transfer"]["vocabulary"]),
        "overview": [
            {"alpha": alpha, "k": 8, "printed_formula": round(printed_overview(alpha, 8), 3)}
            | {"accepted": round(expected_accepted(alpha, 8), 3), "tokens": round(expected_tokens(alpha, 8), 3)}
            for alpha in (0.05, 0.2, 0.5, 0.85, 0.99)
        ],
    }
    cells = []
    for alpha in ALPHAS:
        kind = Iid(match=alpha)
        net = LinkModel(network / 1000)
        arms = [
            Arm(f"rolling-k, α={alpha}", "rolling-k", CHAIN, k=5, phi=99.0),
            Arm(f"co-located best k, α={alpha}", "colocated", k=best_k(alpha, draft, verify)),
            Arm(f"adaptive, α={alpha}", "adaptive", WorkerSpec("bestfirst", 4, 0.0, 16), verify_nodes=32),
        ]
        cells += [Cell(arm, kind, net, steps, want["tokens"], runs or want["runs"]) for arm in arms]
    named = draft_cells(config, runs or want["runs"])
    rows = rows_of([*cells, *(cell for _, _, cell in named)], simulator)
    found["simulated_bytes_per_round"] = _carried(rows[: len(cells)])
    found["drafts"] = draft_table(config, [(name, arm) for name, arm, _ in named], rows[len(cells) :])
    plots.bars(rows[: len(cells)], out, "Cluster post: steps of 15 and 2 ms, round trip 0.5 ms")
    return {"figure": "tables", "rows": rows, "tables": found, "text": _text(found, rows)}


def draft_cells(config: dict[str, Any], runs: int) -> list[tuple[str, str, Cell]]:
    """Of each draft of the post's table its name, an arm's policy, and the cell: at its best k in the target's place,
    and as a worker where it has machines of its own."""
    want = config["run"]
    made = []
    for name, draft in config["drafts"].items():
        steps = steps_of(config | {"steps": config["steps"] | {"draft_ms": {"1": draft["draft_ms"]}}})
        k = best_k(draft["alpha"], draft["draft_ms"], steps.verify(1) * 1000)
        arms = [Arm(f"{name}: co-located k={k}", "colocated", k=k)]
        if draft["pool"]:
            arms += [Arm(f"{name}: rolling-k", "rolling-k", CHAIN, k=5, phi=99.0)]
            arms += [Arm(f"{name}: adaptive", "adaptive", WorkerSpec("bestfirst", 4, 0.0, 16), verify_nodes=32)]
        net = LinkModel(want["rtt_ms"] / 1000)
        made += [
            (name, arm.policy, Cell(arm, Iid(match=draft["alpha"]), net, steps, want["tokens"], runs)) for arm in arms
        ]

    return made


def draft_table(config: dict[str, Any], arms: Sequence[tuple[str, str]], rows: Sequence[Row]) -> list[Row]:
    """The post's table of drafts: speed-up over plain decoding as printed, by its own formula, and simulated."""
    verify = steps_of(config).verify(1) * 1000
    network = config["run"]["rtt_ms"]
    found = []
    for name, draft in config["drafts"].items():
        times = draft["draft_ms"], verify, network if draft["pool"] else 0.0
        k = best_k(draft["alpha"], *times)
        row = {"draft": name, "printed": draft["speedup"], "best_k": k}
        row |= {"formula": round(speedup(draft["alpha"], k, *times), 2)}
        own = [(policy, one) for (of, policy), one in zip(arms, rows, strict=True) if of == name]
        found.append(row | {policy: round(verify / one["ms_per_token"], 2) for policy, one in own})

    return found


def _beside(printed: dict[str, Any], columns: str, ours: Callable[[float, Any], float]) -> list[Row]:
    """Rows of a printed table with our figure beside each of its own."""
    return [
        {"row": float(name), columns: column, "printed": value, "ours": round(ours(float(name), column), 2)}
        for name, values in printed.items()
        if name != columns
        for column, value in zip(printed[columns], values, strict=True)
    ]


def transfer(k: int, vocabulary: int) -> dict[str, int]:
    """Bytes per round: the post's, K probability distributions each way, and ours, padding, signature and headers
    included: up in one frame, or streamed with a frame per draft step; down one commit."""

    def sent(body: Tree | Commit) -> int:
        return wire_bytes(len(encode(Frame(SESSION, 10_000, [body]))))

    at_once = sent(_chain(k, vocabulary))
    streamed = k * sent(_chain(1, vocabulary))
    down = sent(Commit(1, 1, 1000, list(range(vocabulary - k - 1, vocabulary)), bytes(32)))
    printed = 2 * k * vocabulary * 4
    return {
        "printed": printed,
        "ours_up_at_once": at_once,
        "ours_up_streamed": streamed,
        "ours_down": down,
        "printed_over_ours": printed // (at_once + down),
        "printed_over_ours_streamed": printed // (streamed + down),
    }


def _chain(nodes: int, vocabulary: int) -> Tree:
    return Tree(
        request=1,
        epoch=1,
        prefix_len=1000,
        prefix_hash=bytes(32),
        first=1000,
        parents=[ROOT, *range(1000, 1000 + nodes - 1)],
        tokens=list(range(vocabulary - nodes, vocabulary)),
        costs=[223] * nodes,
        entropies=[900] * nodes,
    )


def _carried(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Bytes per round that the simulated links carried."""
    return {
        row["config"]: {
            "up": round(row["up_bytes_per_token"] * row["tokens_per_round"]),
            "down": round(row["down_bytes_per_token"] * row["tokens_per_round"]),
            "tokens": row["tokens_per_round"],
        }
        for row in rows
        if row["up_bytes_per_token"]
    }


def _text(found: dict[str, Any], rows: list[Row]) -> str:
    slow = found["best_k_draft_twice_as_slow"]
    tables = list[tuple[str, list[Row]]]()
    for name, title, side, top in (
        ("expected_tokens", "expected tokens per round", "alpha", "k"),
        ("speedup", "speed-up", "k", "alpha"),
    ):
        by_row = {row["row"]: dict[str, Any]({side: row["row"]}) for row in found[name]}
        for row in found[name]:
            by_row[row["row"]][f"{top} = {row[top]}"] = f"{row['ours']:.2f} / {row['printed']:.2f}"
        tables.append((f"{title} (ours / printed)", list(by_row.values())))
    best = [{"alpha": alpha, "best k": k, "draft twice as slow": slow[alpha]} for alpha, k in found["best_k"].items()]
    sent = [{"config": config, **sizes} for config, sizes in found["simulated_bytes_per_round"].items()]
    ratios = [{name: row[name] for name in ("config", "latency_ratio", "draft_ratio")} for row in rows]
    tables += [("best k", best), ("bytes per round", [found["bytes_per_round"]])]
    tables += [("bytes per round, simulated", sent), ("drafts: speed-up over plain decoding", found["drafts"])]
    tables += [("overview's formula", found["overview"]), ("simulated, over co-located k = 2", ratios)]
    return "\n\n".join(_grid(title, lines) for title, lines in tables)


def _grid(title: str, rows: Sequence[Row]) -> str:
    """Rows as a table below its title; a row may lack columns of others."""
    head = list(dict.fromkeys(name for row in rows for name in row))
    return "\n".join([title, "", *markdown(head, [[row.get(name, "–") for name in head] for row in rows])])


def amusd(out: Path, simulator: Simulator, runs: int | None = None) -> dict[str, Any]:
    """AMUSD's table I, read both ways: which acceptance its "Speculative" column needs and what `amusd` would then
    reach, and which acceptance its own column needs and what speculation with the best k and with k = 5 would reach."""
    config = load("amusd")
    want = config["run"]
    steps = steps_of(config)
    verify = steps.verify(1) * 1000
    draft = steps.worker(1) * 1000

    def cell(config: str, policy: str, alpha: float, worker: WorkerSpec | None = None, k: int = 2) -> Cell:
        arm = Arm(config, policy, worker, k=k, verify_nodes=32)
        return Cell(
            arm, Iid(match=alpha), LinkModel(want["rtt_ms"] / 1000), steps, want["tokens"], runs or want["runs"]
        )

    fits = {name: acceptance(printed["speculative"], draft, verify) for name, printed in config["table"].items()}
    cells = [
        made
        for name, (alpha, k) in fits.items()
        for made in (
            cell(f"{name}: plain", "plain", alpha),
            cell(f"{name}: speculative, k={k}", "colocated", alpha, k=k),
            cell(f"{name}: amusd", "amusd", alpha, CHAIN),
            cell(f"{name}: adaptive, s=16", "adaptive", alpha, WorkerSpec("bestfirst", 4, 0.0, 16)),
        )
    ]
    curve = [cell(f"amusd, α={alpha:.2f}", "amusd", alpha, CHAIN) for alpha in SCAN]
    rows = rows_of([*cells, *curve], simulator)
    scanned = [verify / row["ms_per_token"] for row in rows[len(cells) :]]
    table = []
    for i, (name, printed) in enumerate(config["table"].items()):
        speedups = [verify / row["ms_per_token"] for row in rows[4 * i + 1 : 4 * i + 4]]
        needed = float(np.interp(printed["amusd"], scanned, SCAN))
        k = best_k(needed, draft, verify)
        table.append(
            {"data": name, **{f"{arm} printed": value for arm, value in printed.items()}}
            | {"alpha": round(fits[name][0], 3)}
            | {arm: round(value, 2) for arm, value in zip(("speculative", "amusd", "adaptive"), speedups)}
            | {"alpha_for_amusd": round(needed, 3), "best_k": k}
            | {"speculative_best_k": round(speedup(needed, k, draft, verify), 2)}
            | {"speculative_k_5": round(speedup(needed, 5, draft, verify), 2)}
        )
    plots.bars(rows[: len(cells)], out, "AMUSD table I: steps of 25 and 10 ms")
    text = _grid("speed-up over plain decoding, printed and ours", table)
    return {"figure": "amusd", "rows": rows, "table": table, "text": text}


def acceptance(wanted: float, draft: float, verify: float) -> tuple[float, int]:
    """The acceptance at which the best k reaches this speed-up, and that k."""
    low = 0.0
    high = 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if speedup(middle, best_k(middle, draft, verify), draft, verify) < wanted:
            low = middle
        else:
            high = middle

    return high, best_k(high, draft, verify)
