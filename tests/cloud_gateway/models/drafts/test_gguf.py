"""The gateway's local draft on a tiny model: its proposals, its counts and the measured times of its passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.models.drafts import DraftModel
from cloud_gateway.models.drafts.gguf import LocalDraft
from edgespec.core.drafting.ranking import Asked
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling
from edgespec.llamacpp.drafter import DraftMemoryError
from edgespec.shared.vocabfiles import gguf_vocabulary
from tests.support.engines import Make, complete
from tests.support.slow_drafter import SlowDrafter
from tools.doubles.engines import TableTarget
from tools.doubles.model import VOCAB, HashModel, Logits, next_logits

PROMPT = [1 + i % 50 for i in range(40)]


@pytest.fixture
def local(model: Path) -> Iterator[LocalDraft]:
    made = LocalDraft(model, context=512, requests=2, catch_up_batch=16)
    yield made
    made.shutdown()


def test_it_is_a_draft_model_of_the_engine(model: Path, local: LocalDraft) -> None:
    draft: DraftModel = local  # mypy holds the signatures
    assert draft.passes == 0
    assert local.tokenizer_digest == gguf_vocabulary(model).digest
    assert (local.vocab_size, local.context) == (64, 512)


def test_a_chain_takes_a_step_a_token_and_accepted_tokens_no_second_pass(model: Path, local: LocalDraft) -> None:
    slow = SlowDrafter(model)
    assert local.open("r", PROMPT) == 0
    path: tuple[int, ...] = ()
    for _ in range(3):
        (proposal,) = local.draft([Asked("r", [path])])[0]
        assert len(proposal.tokens) == 1
        slow.check([*PROMPT, *path], proposal, 0.05)
        path += (proposal.tokens[0],)
    assert local.commit("r", path) == 2, "the third draft token was never evaluated"
    assert local.backlog("r") == 1
    slow.close()


def test_catching_up_is_cut_into_limited_passes_and_each_counts(local: LocalDraft) -> None:
    local.open("r", PROMPT)
    local.draft([Asked("r", [()])])
    assert local.passes == 3, "40 tokens: 16, 16, and 8 with the step"
    local.draft([Asked("r", [()])])
    assert local.passes == 4
    local.commit("r", PROMPT)
    assert (local.backlog("r"), local.catch_up("r", 10), local.passes) == (40, 29, 5)
    assert (local.catch_up("r", 1000), local.backlog("r"), local.passes) == (13, 14, 6)


def test_policies_choose_the_leaves_of_a_step_by_the_measured_curve(model: Path) -> None:
    local = LocalDraft(model, context=256, clock=Ticking())
    assert [leaves for leaves, _ in local.points] == [1, 2, 4, 8, 16, local.together] and local.leaves == 16
    assert len({seconds for _, seconds in local.points}) == 1, "on this clock every pass takes the same time"
    local.shutdown()


def test_several_leaves_and_children_come_where_they_were_asked_for(model: Path) -> None:
    local = LocalDraft(model, context=256, leaves=2)
    local.open("r", PROMPT)
    assert [len(proposal.tokens) for proposal in local.draft([Asked("r", [(3,), (4,)], 3)])[0]] == [3, 3]
    local.shutdown()


class Ticking:
    """A clock on which every pass takes one tick."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tick_s = 1.0

    def __call__(self) -> float:
        self.now += self.tick_s
        return self.now


def test_costs_are_measured_before_the_first_request_and_while_drafting(model: Path) -> None:
    clock = Ticking()
    local = LocalDraft(model, context=512, requests=2, catch_up_batch=16, clock=clock)
    assert local.step_s == 1.0
    assert local.token_s == pytest.approx(1 / 16, rel=0.1)
    local.open("r", PROMPT)
    assert local.backlog("r") == 40
    local.draft([Asked("r", [()])])
    assert (local.backlog("r"), local.step_s) == (0, 1.0)
    clock.tick_s = 3.0
    for _ in range(30):
        local.draft([Asked("r", [()])])
    assert local.step_s == pytest.approx(3.0, rel=0.01)
    for _ in range(5):
        local.commit("r", PROMPT)
        while local.catch_up("r", 16):
            pass
    assert local.token_s > 0.08
    local.shutdown()


def test_closed_prompts_serve_later_ones_of_their_scope(local: LocalDraft) -> None:
    for scope, shared in ((b"s", 40), (b"", 0)):
        local.open("a", PROMPT, scope)
        local.draft([Asked("a", [()])])
        local.close("a")
        assert local.open("b", PROMPT, scope) == shared
        local.close("b")


def test_what_it_cannot_serve_is_one_sentence(local: LocalDraft, tmp_path: Path) -> None:
    with pytest.raises(DraftMemoryError, match="600 tokens"):
        local.open("r", [1] * 600)
    with pytest.raises(ModelError, match=r"nowhere\.gguf cannot be read"):
        LocalDraft(tmp_path / "nowhere.gguf", context=512)


@pytest.mark.parametrize("size", [VOCAB, 96])
async def test_a_draft_with_other_unused_entries_than_the_target_drafts_for_it(
    make: Make, model: Path, size: int
) -> None:
    """The draft's vocabulary has 64 entries, the target's more or fewer."""
    local = LocalDraft(model, context=512, requests=2, leaves=4, target_vocab_size=size)
    engine = make(None, local, TableTarget(model=Padded(size)), policy="local-chain", k=3)
    sampling = Sampling(temperature=1.0, seed=4)
    _, done = await complete(engine, GenerationRequest([3, 1, 4], 40, sampling, ignore_eos=True))
    engine.stop()
    local.shutdown()
    assert done.finish == "length", done
    assert done.usage.drafted["local"] > 20


class Padded(HashModel):
    """Entries beyond the hash model's own vocabulary are impossible."""

    def row(self, tokens: Sequence[int]) -> Logits:
        logits = next_logits(tokens)
        return np.pad(logits, (0, self.vocab_size - len(logits)), constant_values=-np.inf)
