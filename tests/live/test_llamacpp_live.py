"""The demo's model in llama.cpp as the target: a gateway, a delayed link and a worker give plain decoding's text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgespec.lab.demo.scene import PROMPTS, make_rig, read_prompts
from edgespec.lab.rig import Rig
from edgespec.shared import models

pytestmark = pytest.mark.live
TOKENS = 40


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    target, draft = str(models.quantised()), str(models.requantised())  # a draft that reads a prompt fast
    made = make_rig(tmp_path_factory.mktemp("rig"), target, draft, 20.0, engine="llamacpp", dtype="float32")
    with made.linked() as running:
        yield running


@pytest.mark.parametrize("policy", ["wanspec", "adaptive", "colocated"])
def test_the_text_with_drafts_is_that_of_plain_decoding(rig: Rig, policy: str) -> None:
    accepted = 0
    for prompt in read_prompts(PROMPTS, 3, seed=2):
        plain = rig.chat(prompt, TOKENS, policy="plain")
        drafted = rig.chat(prompt, TOKENS, policy=policy)
        assert drafted["choices"][0]["message"] == plain["choices"][0]["message"]
        accepted += sum(drafted["usage"]["edgespec"]["accepted"].values())
    if policy == "colocated":  # a worker on a busy machine may be too late for a target as small as its draft
        assert accepted > 0


def test_the_log_names_the_engine_and_the_threads(rig: Rig) -> None:
    assert "loaded by llama.cpp, exact" in rig.log("gateway")
