"""The target's own layers as its draft, against a model of transformers that has those layers only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cloud_gateway.core.requests.choices import Choices
from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.drafts import DraftModel
from cloud_gateway.models.target_model.inside import LayersTarget
from cloud_gateway.parts.self_draft.draft import SelfDraft
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings, load_models
from cloud_gateway.process.targets import check_models
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked, TokenPath
from edgespec.core.errors import ConfigError, ModelError
from edgespec.core.protocol.messages import Sampling
from tests.support.engines import complete, started
from tests.support.local_policies import WITH_LOCAL
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import load_tiny, make_tiny_target, plain_logits
from tests.support.torch_targets import torch_settings, torch_target

KEPT = [0, 2, 3]
PROMPT = [1 + i % 50 for i in range(40)]
Answer = Callable[[list[int]], NDArray[np.float32]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("model"), layers=4)


@pytest.fixture(scope="module")
def target(folder: Path) -> LayersTarget:
    found = torch_target(load_tiny(folder), slots=2, threads=1)
    assert isinstance(found, LayersTarget)
    return found


@pytest.fixture
def draft(target: LayersTarget) -> SelfDraft:
    return SelfDraft(target, KEPT, requests=2, catch_up_batch=16)


@pytest.fixture(scope="module")
def twin(folder: Path) -> Answer:
    model: Any = load_tiny(folder)
    model.model.layers = torch.nn.ModuleList([model.model.layers[i] for i in KEPT])
    return lambda tokens: plain_logits(model, tokens)[-1].numpy()


class Rows:
    """A `Rank` that keeps the rows it was given."""

    def __init__(self) -> None:
        self.rows: dict[TokenPath, NDArray[np.float32]] = {}

    def __call__(self, logits: NDArray[np.float32], path: TokenPath, width: int) -> Proposal:
        self.rows[path] = logits.copy()
        best = np.argsort(-logits)[:width].tolist()
        return Proposal(best, [1.0] * len(best), 1.0)


def test_chains_branches_and_commits_give_the_logits_of_the_kept_layers(draft: SelfDraft, twin: Answer) -> None:
    model: DraftModel = draft  # mypy holds the signatures
    committed = list(PROMPT)
    rank = Rows()
    model.open("r", committed)
    rounds = [((), (5,), (5, 6), (5, 9), (7,)), ((), (8,), (8, 8)), ((), (4,))]
    for paths, taken in zip(rounds, ([5, 9, 11], [8, 8], [4]), strict=True):
        for path in paths:
            model.draft([Asked("r", [path], 2, rank)])
            np.testing.assert_allclose(rank.rows[path], twin([*committed, *path]), atol=1e-4)
        model.commit("r", taken)
        committed += taken


def test_a_chain_takes_a_row_a_step_and_accepted_tokens_none_again(draft: SelfDraft) -> None:
    draft.open("r", PROMPT)
    assert draft.backlog("r") == 40 and draft.catch_up("r", 1000) == 23 and draft.passes == 1
    draft.draft([Asked("r", [()])])
    assert draft.passes == 3, "16 more tokens, and the last eight with the step"
    draft.draft([Asked("r", [(3,)])])
    draft.draft([Asked("r", [(3, 4)])])
    draft.commit("r", [3, 4, 5])
    assert draft.backlog("r") == 1 and draft.passes == 5
    draft.commit("r", [6])
    assert draft.backlog("r") == 2 and draft.step_s > 0 and draft.token_s > 0


def test_another_request_reuses_a_prompt_of_its_own_scope_only(draft: SelfDraft, twin: Answer) -> None:
    draft.open("a", PROMPT, b"one")
    draft.draft([Asked("a", [()])])
    draft.draft([Asked("a", [(9,)])])
    draft.close("a")
    assert draft.open("b", [*PROMPT, 9, 9], b"two") == 0
    assert draft.open("c", [*PROMPT, 9, 9], b"one") == len(PROMPT)
    with pytest.raises(ModelError, match="as many requests"):
        draft.open("d", PROMPT)
    rank = Rows()
    draft.draft([Asked("c", [()], 1, rank)])
    np.testing.assert_allclose(rank.rows[()], twin([*PROMPT, 9, 9]), atol=1e-4)
    draft.close("b")
    draft.close("c")


def test_requests_share_a_pass(draft: SelfDraft, twin: Answer) -> None:
    draft.open("a", PROMPT)
    draft.open("b", PROMPT[3:])
    for path in ((), (5,)):
        for name in "ab":
            draft.catch_up(name, 1000)
        before = draft.passes
        rows = (Rows(), Rows())
        draft.draft([Asked("a", [path], 1, rows[0]), Asked("b", [path], 1, rows[1])])
        assert draft.passes <= before + 3
        for prompt, rank in zip((PROMPT, PROMPT[3:]), rows, strict=True):
            np.testing.assert_allclose(rank.rows[path], twin([*prompt, *path]), atol=1e-4)
    assert draft.passes == before + 1 and draft.points[-1][0] == 2


def test_too_long_a_path_and_layers_not_there_are_one_sentence(target: LayersTarget) -> None:
    draft = SelfDraft(target, KEPT, requests=1)
    draft.open("r", [1] * target.context)
    with pytest.raises(ModelError, match="more than the target's context"):
        draft.draft([Asked("r", [(1,) * 65])])
    for layers in ([], [0, 1, 2, 3], [1, 0], [0, 4], [0, 0]):
        with pytest.raises(ModelError, match="takes some of the target's 4 layers"):
            SelfDraft(target, layers, requests=1)


def configured(model: Path, **more: Any) -> GatewaySettings:
    draft = {"local_draft.layers": KEPT, "local_draft.model": "self"}
    return torch_settings({"target.model": str(model), **draft, **more})


POLICIES = ["local-chain", "local-tree", "adaptive", "wanspec"]


async def test_the_text_is_that_of_plain_decoding(folder: Path) -> None:
    settings = configured(folder)
    loaded = load_models(settings)
    assert isinstance(loaded.local, SelfDraft)
    engine = Engine(loaded.target, loaded.local, engine_settings(settings, Choices(WITH_LOCAL)))
    with started(engine):
        for sampling in (Sampling(temperature=0.0), Sampling(temperature=0.9, seed=3)):
            found = {}
            for policy in ("plain", *POLICIES):
                asked = Speculation(policy=policy, k=3, prefer="latency", sources=())
                wanted = GenerationRequest(PROMPT, 24, sampling, ignore_eos=True, speculation=asked)
                found[policy], done = await complete(engine, wanted)
                if policy.startswith("local"):
                    usage = done.usage
                    assert usage.local_draft_passes and usage.drafted["local"] >= usage.accepted.get("local", 0)
            assert all(text == found["plain"] for text in found.values())


def test_settings_that_do_not_fit_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local_draft\.layers"):
        configured(folder, **{"local_draft.layers": []})
    file = make_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ModelError, match='set `target.engine` to "torch"'):
        check_models(configured(file, **{"target.engine": "llamacpp", "target.dtype": "bfloat16"}))
    other = make_tiny_target(tmp_path / "gpt2", architecture="gpt2")
    with pytest.raises(ModelError, match="only one of the Llama family can"):
        load_models(configured(other))
