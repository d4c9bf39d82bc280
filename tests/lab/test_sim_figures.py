"""The papers' results on reduced runs: what WANSpec, the cluster post and AMUSD report comes out of our policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.core.policies.policy import Action, CatchUp, Costs, Draft, LinkView, Outcome, Policy, Verify, Wait
from cloud_gateway.core.policies.wanspec import UNSET_PHI, WanSpec
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec_lab.choices import gateway_choices
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim import figures, tables
from edgespec_lab.sim.__main__ import main
from edgespec_lab.sim.config import load, steps_of, tokens_of
from edgespec_lab.sim.experiment import Arm, Cell, Simulator, WorkerSpec, rows_of, simulate
from tests.support.served import compares

POLICIES = gateway_choices().policies
CONFIG = load("wanspec")
CHAIN = WorkerSpec(branching=1, theta=0.0, sequences=1)
TREE = WorkerSpec()
ROW = {"rtt_ms", "config", "latency_ratio", "draft_ratio", "draft_token_ratio", "ms_per_token", "tokens_per_round"}
SHORT = {"rtt_ms": [0, 20], "sweep_rtt_ms": [20], "phi_values": 3}


# --- figure 7 --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ablation() -> dict[tuple[str, float], dict[str, Any]]:
    """Figure 7 at the round trips of which section 5.2 speaks: rows by step of the ablation and round trip."""
    want = CONFIG["run"]
    cells = [
        Cell(arm, tokens_of(CONFIG), LinkModel(rtt / 1000), steps_of(CONFIG), want["tokens"], want["runs"])
        for (_, arm), rtts in zip(figures.ablation("", want), [(10, 20, 30), (20, 50), (15, 20), (15, 20, 30)])
        for rtt in rtts
    ]
    return {(row["config"], row["rtt_ms"]): row for row in rows_of(cells, Simulator(POLICIES, processes=1))}


@compares
def test_without_branching_10_ms_gains_6_percent_and_30_ms_nothing(ablation: Any) -> None:
    """The paper says nearly nothing at 10 ms (docs/results/papers.md)."""
    assert ablation["b=1", 10]["latency_ratio"] == pytest.approx(0.94, abs=0.01)
    assert ablation["b=1", 20]["latency_ratio"] >= 0.98
    assert ablation["b=1", 30]["latency_ratio"] == pytest.approx(1, abs=0.01)


@compares
def test_branching_doubles_the_round_trip_that_helps(ablation: Any) -> None:
    assert ablation["b=2", 20]["latency_ratio"] <= 0.97
    assert ablation["b=2", 50]["latency_ratio"] >= 0.98


@compares
def test_the_workers_threshold_adds_to_the_gain_at_twenty_milliseconds(ablation: Any) -> None:
    assert ablation["b=2 θ=0.5", 15]["latency_ratio"] <= 0.93
    gains = [1 - ablation[config, 20]["latency_ratio"] for config in ("b=2", "b=2 θ=0.5")]
    assert gains[1] >= 1.3 * gains[0] and gains[1] >= 0.09


@compares
def test_phi_halves_the_gateways_passes_for_a_small_slowdown(ablation: Any) -> None:
    config = "b=2 θ=0.5 φ=0.5"
    assert ablation[config, 20]["draft_ratio"] <= 0.55
    assert ablation[config, 30]["draft_ratio"] <= 0.70
    for rtt in (15, 20, 30):
        assert ablation[config, rtt]["latency_ratio"] <= 1.05


# --- Algorithm 1 -----------------------------------------------------------------------------------------------------


class Algorithm1(Policy):
    """Algorithm 1, written from the paper and from nothing else; before the worker's first frame it drafts here.

    With `whole`, also what the paper says in words: a draft step evaluates all that is missing in batches of limited
    size (4.5), and a token that shows the worker on another path marks it out of date as of the commit that it had not
    seen (5.3, steps 4 and 5).
    """

    name = "algorithm 1"

    def __init__(self, k: int, phi: float, *, whole: bool = False) -> None:
        self.k = k
        self.phi = phi
        self.whole = whole
        self.t_update = float("-inf")
        self.sent: list[tuple[int, float]] = []

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        assert link is not None
        if tree.depth() >= self.k:
            return Verify(tree.best(16, self.k))
        if self.t_update + link.rtt_s > now or not link.ready:
            if self.whole and costs.local_backlog_s > costs.batch_backlog_s:
                return CatchUp()
            return Draft((tree.best_leaf(),))
        return Wait(now + 3600)

    def received(self, merged: Merged, now: float) -> None:
        """The printed loop appends speculations and does nothing else."""
        if self.whole and merged.diverged_at >= 0:
            later = [when for position, when in self.sent if position > merged.diverged_at]
            self.t_update = max(self.t_update, *later[:1]) if later else self.t_update

    def verified(self, outcome: Outcome, now: float) -> None:
        self.sent.append((outcome.position, now))
        assert outcome.entropy is not None
        noticed = self.whole and not outcome.at_leaf  # the next candidates are here already, and none is the last token
        if outcome.emitted < self.k + 1 or noticed or outcome.entropy > self.phi:
            self.t_update = now

    def needs_entropy(self, tree: CandidateTree, *, emitted: int, at_leaf: bool) -> bool:
        """The paper computes it in every round."""
        return True


class AsPrinted(Arm):
    """An arm with `Algorithm1` instead of the policy that ships."""

    def controller(self, policies: object, before: object = None) -> Policy:
        return Algorithm1(self.k, self.phi)


def both(worker: WorkerSpec, phi: float, rtt_ms: float) -> list[list[tuple[float, int, int]]]:
    """Seconds, rounds and gateway passes of two answers with the shipped policy and with Algorithm 1."""
    options = {"k": 2, "phi": phi, "depth": 2}
    arms = Arm("ours", "wanspec", worker, **options), AsPrinted("printed", "wanspec", worker, **options)
    cells = [Cell(arm, tokens_of(CONFIG), LinkModel(rtt_ms / 1000), steps_of(CONFIG), 100, 2) for arm in arms]
    return [[(r.seconds, r.rounds, r.local_passes) for r in simulate(cell, POLICIES)] for cell in cells]


@pytest.mark.parametrize("worker", [CHAIN, TREE])
@pytest.mark.parametrize("rtt_ms", [0, 7, 20, 60])
def test_the_shipped_wanspec_is_algorithm_1_to_the_last_bit(worker: WorkerSpec, rtt_ms: float) -> None:
    ours, printed = both(worker, figures.NEVER_SKIP, rtt_ms)
    assert ours == printed


class AsTheWholePaper(Arm):
    """An arm with what the paper says in print and in words."""

    def controller(self, policies: object, before: object = None) -> Policy:
        return Algorithm1(self.k, self.phi, whole=True)


@pytest.mark.parametrize("catch_up_ms", [0.0, 3.0])
@pytest.mark.parametrize("rtt_ms", [7, 60])
@pytest.mark.parametrize("phi", [0.5, UNSET_PHI])
def test_with_phi_and_priced_catch_up_it_is_the_whole_papers(
    phi: float, rtt_ms: float, catch_up_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a worker that is late, of which the paper says nothing: none is here."""
    monkeypatch.setattr(WanSpec, "_patience", lambda self, link: 60.0)
    steps = replace(steps_of(CONFIG), catch_up_s=catch_up_ms / 1000, unread=0)
    options = {"k": 2, "phi": phi, "depth": 2}
    arms = Arm("ours", "wanspec", TREE, **options), AsTheWholePaper("paper", "wanspec", TREE, **options)
    ours, paper = (
        [(r.seconds, r.rounds, r.local_passes, r.local_tokens) for r in simulate(cell, POLICIES)]
        for cell in (Cell(arm, tokens_of(CONFIG), LinkModel(rtt_ms / 1000), steps, 60, 3) for arm in arms)
    )
    assert ours == paper
    assert any(passes for _, _, passes, _ in ours)


# --- the other tables ------------------------------------------------------------------------------------------------


@compares
def test_the_match_statistics_are_those_of_section_5_4() -> None:
    config = load("wanspec-cloud")
    found = figures.match_statistics(tokens_of(config), steps_of(config), 100, 60, POLICIES)
    assert found["first"] == pytest.approx(0.80, abs=0.015)
    assert found["second_given_first"] == pytest.approx(0.83, abs=0.015)
    assert found["second_given_first"] > found["first"], "the tokens are not i.i.d."


def test_a_round_here_is_a_thousandth_of_the_posts_bytes() -> None:
    found = tables.transfer(k=5, vocabulary=32_000)
    page = (Path(__file__).parents[2] / "docs/results/papers.md").read_text()
    once, streamed = (f"{found['ours_' + one]:,} B | {found['ours_down']:,} B" for one in ("up_at_once", "up_streamed"))
    assert f"{once} | {found['printed_over_ours']:,} |" in page and f"{streamed} |" in page
    assert found["printed"] == 2 * 640_000
    assert found["ours_up_at_once"] + found["ours_down"] < found["printed"] / 1000
    assert found["ours_up_streamed"] == 5 * found["ours_up_at_once"], "both are padded to the smallest size"


@compares
def test_the_posts_drafts_stand_beside_their_formula_and_what_is_simulated() -> None:
    config = load("cluster")
    config["run"] |= {"tokens": 150}
    found = tables.draft_cells(config, 4)
    rows = rows_of([cell for _, _, cell in found], Simulator(POLICIES, processes=1))
    table = {row["draft"]: row for row in tables.draft_table(config, [(name, arm) for name, arm, _ in found], rows)}
    assert table["Llama 7B"]["formula"] == 1.91 and table["Llama 7B"]["printed"] == 2.2
    assert all(row["colocated"] == pytest.approx(row["formula"], rel=0.1) for row in table.values())
    for name, draft in config["drafts"].items():
        assert ("adaptive" in table[name]) == ("rolling-k" in table[name]) == draft["pool"], "others are in the target"
    assert table["Llama 7B"]["adaptive"] > table["Llama 7B"]["colocated"]


@pytest.mark.parametrize(("data", "alpha"), [("HumanEval", 0.717), ("MT-Bench", 0.484), ("RefactorChat", 0.842)])
def test_amusds_baseline_column_fixes_the_acceptance(data: str, alpha: float) -> None:
    config = load("amusd")
    wanted = config["table"][data]["speculative"]
    assert tables.acceptance(wanted, 10.0, 25.0)[0] == pytest.approx(alpha, abs=0.002)


# --- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture()
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """All figures with few points and short answers."""

    def shortened(name: str) -> dict[str, Any]:
        config = load(name)
        kept = {key: value for key, value in SHORT.items() if key in config["run"] and name == "wanspec"}
        return config | {"run": config["run"] | kept | {"tokens": 12, "runs": 1, "sweep_runs": 1}}

    for module in (figures, tables):
        monkeypatch.setattr(module, "load", shortened)


@compares
@pytest.mark.parametrize("name", ["fig7", "fig8", "fig9", "tables", "amusd"])
@pytest.mark.usefixtures("short")
def test_every_figure_is_written_as_json_with_its_columns_and_as_plots(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / f"{name}.json"
    assert main([name, "--json", str(out), "--processes", "1"]) == 0
    assert "{" not in capsys.readouterr().out, "tables for people"
    found = json.loads(out.read_text())
    assert found["rows"] and all(set(row) >= ROW for row in found["rows"])
    assert all(row["latency_ratio"] > 0 and row["draft_ratio"] >= 0 for row in found["rows"])
    places = [(row["config"], row["rtt_ms"], row.get("tokens")) for row in found["rows"]]
    assert len(set(places)) == len(places), "one row per configuration and round trip"
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in out.with_suffix(".svg").read_text()
