"""The same text with any draft under any fault: `tools.lossless matrix` in small.

LOSSLESS_MATRIX holds other options for the command, for the full matrix for example
"--prompts FILE --limit 20 --seeds 3 --max-tokens 64 --others 4".
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from edgespec_lab.demo.scene import read_prompts
from edgespec_lab.rig import Rig
from tools.lossless import __main__ as command
from tools.lossless import matrix
from tools.lossless.conditions import CONDITIONS

pytestmark = pytest.mark.live
SMALL = "--limit 1 --seeds 2 --max-tokens 28 --others 1 --at-once 4 --policy wanspec"
"""`wanspec` verifies what a random worker sends; `adaptive` soon does without it (the matrix in CI runs both)."""


@pytest.fixture(scope="module")
def args() -> argparse.Namespace:
    return command.parser().parse_args(["matrix", *shlex.split(os.environ.get("LOSSLESS_MATRIX", SMALL))])


@pytest.fixture(scope="module")
def stage(args: argparse.Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with matrix.make_stage(tmp_path_factory.mktemp("stage"), args) as stage:
        matrix.set_up(stage, Console(quiet=True))
        yield stage


@pytest.fixture(scope="module")
def report(stage: Rig, args: argparse.Namespace) -> dict[str, Any]:
    prompts = read_prompts(args.prompts, args.limit, seed=1)
    with Progress(console=Console(quiet=True)) as progress:
        return list(matrix.Matrix(stage, args).run(prompts, progress))[-1]


def rows(report: dict[str, Any], condition: str) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if row["condition"] == condition]


@pytest.mark.claim("every-sampling-parameter-with-every-drafter-gives-one-text")
def test_the_text_is_the_same_with_any_drafter(report: dict[str, Any]) -> None:
    """Sampled at 0.7 and 1.0, greedy, with penalties, two choices, JSON, a stop string across a token border."""
    assert report["differences"] == []
    assert {row["kind"] for row in report["rows"]} == {"sampled", "greedy", "penalties", "choices", "json", "stop"}
    assert {row["condition"] for row in report["rows"]} == set(CONDITIONS)


def test_every_condition_was_really_applied(report: dict[str, Any]) -> None:
    sampled = {row["condition"]: row for row in report["rows"] if row["kind"] == "sampled"}
    assert all(row["exercised"] >= row["answers"] / 2 for row in sampled.values()), sampled
    assert sampled["none"]["frames_used"] == 0
    assert sampled["worker"]["accepted_from_workers"] > 0
    assert sampled["killed"]["frames_used"] > 0 and sampled["killed"]["after_kill"] > 0
    assert all(report["frames_by_worker"]["two"][f"demo-{name}"] > 0 for name in ("worker", "second")), "both served"


def test_a_worker_of_random_trees_is_verified_and_rarely_right(report: dict[str, Any]) -> None:
    verified = sum(row["verified_from_workers"] for row in rows(report, "random"))
    accepted = sum(row["accepted_from_workers"] for row in rows(report, "random"))
    assert verified > 100 and accepted < 0.05 * verified
    assert sum(row["frames_rejected"] for row in rows(report, "random")) == 0, "valid in shape: nothing to refuse"


def test_a_stop_string_cuts_the_answer_where_it_begins(report: dict[str, Any]) -> None:
    texts = report["texts"]
    stopped, finish = texts["0/stop"][0]
    whole = texts["0/T=0.7/seed=1"][0][0]
    assert finish == "stop" and whole.startswith(stopped) and len(stopped) < len(whole)


def test_drafted_json_completions_are_whole(report: dict[str, Any]) -> None:
    (text, finish), row = report["texts"]["0/json"][0], next(r for r in rows(report, "worker") if r["kind"] == "json")
    found = json.loads(text)
    assert finish == "stop" and list(found) == list(matrix.SCHEMA["properties"])
    assert 1 <= len(found["facts"]) <= 2 and found["kind"] in ("story", "fact", "advice")
    assert row["accepted_from_workers"] > 0 and row["tokens"] > row["rounds"]
