"""The demo with real models: its model in llama.cpp as the target, places, worst cases, and the deep target's text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from edgespec.core.errors import ModelError
from edgespec.shared import models
from edgespec_lab.deep_target import deepened
from edgespec_lab.demo import check_identity
from edgespec_lab.demo.arms import BASE, REMOTE
from edgespec_lab.demo.scene import PROMPTS, make_rig, read_prompts
from edgespec_lab.places.__main__ import main as places
from edgespec_lab.rig import Rig

pytestmark = pytest.mark.live
TOKENS = 12


def test_two_round_trips_are_measured_in_one_run(tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    common = ["--rtt-ms", "0,20", "--max-tokens", str(TOKENS), "--json", str(out)]
    assert places([*common, "--limit", "1"]) == 0
    figures = json.loads(out.read_text())
    assert {(row["rtt_ms"], row["prefer"]) for row in figures["rows"]} == {
        (rtt_ms, prefer) for rtt_ms in (0.0, 20.0) for prefer in ("balanced", "latency")
    }
    for row in figures["rows"]:
        workers = {name for runs in figures["runs"] for name in runs[row["arm"]]["usage"]["workers"]}
        assert workers <= {f"demo-{row['arm']}"}, "each place and preference has its own worker"


def test_the_deep_targets_text_does_not_depend_on_drafts(tmp_path: Path) -> None:
    try:
        target = deepened(gguf=True)
    except ModelError as error:
        pytest.skip(str(error))
    rig = make_rig(tmp_path, str(target), str(models.requantised()), 20.0)
    prompts = read_prompts(PROMPTS, 1, seed=3)
    with rig.linked():
        same = check_identity(rig, prompts, TOKENS, Console(quiet=True))
    assert same == {arm: [True] for arm in same} and set(REMOTE) | {BASE} <= set(same)


ANSWER_TOKENS = 40


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    target, draft = str(models.quantised()), str(models.requantised())  # a draft that reads a prompt fast
    made = make_rig(tmp_path_factory.mktemp("rig"), target, draft, 20.0, exact=True)
    with made.linked() as running:
        yield running


@pytest.mark.parametrize("policy", ["wanspec", "adaptive", "colocated"])
def test_the_text_with_drafts_is_that_of_plain_decoding(rig: Rig, policy: str) -> None:
    accepted = 0
    for prompt in read_prompts(PROMPTS, 3, seed=2):
        plain = rig.chat(prompt, ANSWER_TOKENS, policy="plain")
        drafted = rig.chat(prompt, ANSWER_TOKENS, policy=policy)
        assert drafted["choices"][0]["message"] == plain["choices"][0]["message"]
        accepted += sum(drafted["usage"]["edgespec"]["accepted"].values())
    if policy == "colocated":  # a worker on a busy machine may be too late for a target as small as its draft
        assert accepted > 0


def test_the_log_names_the_engine_and_the_threads(rig: Rig) -> None:
    assert "loaded by llama.cpp, exact" in rig.log("gateway")
