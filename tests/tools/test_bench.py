"""`tools.bench`: what each benchmark of the host side measures, on tiny models."""

from __future__ import annotations

import json
from pathlib import Path

from cloud_gateway.process.config import GatewaySettings
from tools.bench.__main__ import main
from tools.bench.rounds import Setup


def test_the_bench_of_rounds_measures_the_shipped_defaults_by_parts(tmp_path: Path) -> None:
    out = tmp_path / "rounds.json"
    assert main(["rounds", "--rounds", "30", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures["frames_per_round"] == 4 and figures["tokens_per_round"] > 1
    for part in ("receive", "engine", "send", "engine_and_send", "round", "decision"):
        assert 0 < figures[f"{part}_us"] <= figures[f"{part}_p99_us"]
    assert figures["decision_us"] < figures["engine_us"] and figures["decisions_per_round"] >= 1
    assert Setup().policy == GatewaySettings().policy.name and GatewaySettings().policy.verify_nodes == 16
