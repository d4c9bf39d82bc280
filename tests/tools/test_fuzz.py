"""The fuzz gate finds nothing in a few thousand cases, and finds what is planted."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloud_gateway.core.policies import tree_model
from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.verify import accept
from edgespec.core.drafting import ranking
from edgespec.core.sampling import logits as processing
from tests.support.served import needs
from tools.fuzz import __main__ as command
from tools.fuzz import api_cases, decoders, run, tree_cases
from tools.fuzz.model import METHODS
from tools.fuzz.tree_cases import check_finite

pytestmark = needs("logprobs")
SEED = 20261120
Plant = Callable[[pytest.MonkeyPatch], None]


def piece(kind: str, count: int, start: int = 0) -> run.Piece:
    return run.Piece(kind, SEED, start, count, count)


def passed(result: run.Result) -> run.Result:
    assert result.failure is None, result.failure[1]
    return result


@pytest.mark.claim("bodies-over-the-whole-parameter-space-fail-nothing")
def test_bodies_over_the_whole_parameter_space_fail_nothing() -> None:
    seen = passed(run.run_piece(piece("api", 1500))).seen
    assert seen["shared-noise"] > 900 and seen["refused"] > 30
    assert all(seen[method] > 50 for method in METHODS)


@pytest.mark.claim("trees-that-pass-the-shape-checks-fail-no-policy")
@pytest.mark.claim("no-tree-makes-a-request-fault-or-a-round-endless")
def test_trees_that_pass_the_shape_checks_fail_no_policy() -> None:
    seen = passed(run.run_piece(piece("tree", 100))).seen
    assert all(seen[policy] >= 5 * tree_cases.ROUNDS for policy in POLICIES)
    assert seen["candidates accepted"] > 500, "trees are entered, not only refused"
    assert seen["reported curves"] > 20, "the router meets any step times that a worker reports"
    assert seen["shape-depth"] and seen["shape-ids"], "what only the merge can tell is sent too"


@pytest.mark.claim("bodies-over-the-whole-parameter-space-fail-nothing")
def test_bodies_through_the_whole_gateway_end_as_200_or_400() -> None:
    seen = passed(run.run_piece(piece("http", 40))).seen
    assert seen["200"] > 20 and seen["200"] + seen["400"] == 40


def test_a_run_is_as_many_cases_as_asked_for_and_the_same_each_time() -> None:
    for cases in (1, 24, 20_000):
        for kinds in (tuple(run.KINDS), ("tree",), ("api", "http")):
            found = run.pieces(cases, 3, kinds)
            assert cases <= sum(piece.cases for piece in found) < cases + decoders.INPUTS
    counts = Counter(piece.kind for piece in found for _ in piece.names())
    assert set(counts) == {"api", "http"}
    whole = Counter[str]()
    for piece in run.pieces(12_500_000, 3):
        whole[piece.kind] += piece.cases
    assert 12_500_000 <= whole.total() < 12_500_000 + decoders.INPUTS
    assert set(whole) == set(run.KINDS) and whole["decoder"] > 10_400_000 and whole["http"] >= 300
    names = [name for piece in run.pieces(200_000, 3) for name in piece.names()]
    assert len(names) == len(set(names)) > 9_000
    name = f"{SEED}:api:5"
    assert api_cases.shown(name) == api_cases.shown(name) and run.one(name) == run.one(name)


def unclipped_logits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(processing, "_clipped", lambda logits: logits)


def uncut_prices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ranking, "MAX_COST", math.inf)


def a_chooser_that_reads_its_candidates(patch: pytest.MonkeyPatch) -> None:
    def walk(flat: object, choose: Callable[[int], int], **options: object) -> accept.Walk:
        taken = accept.walk(flat, choose, **options)
        taken.tokens[-1] = flat.tokens[-1]  # type: ignore[attr-defined]
        return taken

    patch.setattr(api_cases, "walk", walk)
    patch.setattr(tree_cases, "walk", walk)


def an_estimate_of_no_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tree_model, "exp", lambda _: math.nan)


@pytest.mark.parametrize(
    ("plant", "kind", "count"),
    [
        (unclipped_logits, "api", 200),
        (uncut_prices, "api", 200),
        (a_chooser_that_reads_its_candidates, "api", 200),
        (a_chooser_that_reads_its_candidates, "tree", 20),
        (an_estimate_of_no_numbers, "tree", 50),
    ],
)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, kind: str, count: int) -> None:
    plant(monkeypatch)
    failure = run.run_piece(piece(kind, count)).failure
    assert failure is not None and failure[0].startswith(f"{SEED}:{kind}:")
    for _ in range(5):
        with pytest.raises(Exception):  # noqa: B017  whatever the fault leads to, the named case shows it again
            run.one(failure[0])


def test_a_failure_ends_the_run_with_the_case_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def failing(todo: list[run.Piece], jobs: int, done: Callable[[run.Result], None]) -> tuple[str, str] | None:
        unclipped_logits(monkeypatch)
        for one in todo:
            result = run.run_piece(one)
            done(result)
            if result.failure:
                return result.failure
        return None

    monkeypatch.setattr(run, "run", failing)
    out = tmp_path / "out.json"
    assert command.main(["--cases", "1000", "--kind", "api", "--seed", str(SEED), "--json", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "Traceback" in printed and f"FAILED: python -m tools.fuzz --case {SEED}:" in printed
    assert json.loads(out.read_text())["ok"] is False


def test_what_is_not_a_number_is_found_anywhere_in_our_objects() -> None:
    spread = ranking.Spread()
    check_finite(spread)
    spread._loss[3] = math.nan
    with pytest.raises(AssertionError, match="_loss"):
        check_finite(spread)
    check_finite(np.array([math.inf]))
