"""The policies in the engine: they change no token, and draft no more than they say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloud_gateway.core.policies.settings import DEFAULTS
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.part import choices_of
from cloud_gateway.parts.baselines import PART
from edgespec.core.protocol.messages import Sampling
from tests.support.engines import Make, complete, engines
from tools.doubles.engines import TableDraft
from tools.doubles.model import plain_greedy
from tools.doubles.workers import LoopWorker

pytestmark = pytest.mark.driven
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
POLICIES = choices_of([PART]).policies


@pytest.fixture
def make() -> Iterator[Make]:
    with engines() as made:
        yield made


@pytest.mark.claim("the-completion-is-plain-decodings-with-any-drafter")
@pytest.mark.parametrize("policy", PART.policies)
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("delay_s", [0.0, 0.004])
async def test_the_completion_is_plain_decodings(make: Make, policy: str, right: float, delay_s: float) -> None:
    engine = make(LoopWorker(delay_s, right), TableDraft(right), policy=policy, policies=POLICIES)
    tokens, done = await complete(engine, GenerationRequest(PROMPT, 30, ignore_eos=True))
    assert tokens == plain_greedy(PROMPT, 30)
    assert (done.finish, done.usage.policy) == ("length", policy)


@pytest.mark.parametrize("policy", ["colocated", "colocated-tree"])
async def test_co_located_policies_leave_the_worker_alone(make: Make, policy: str) -> None:
    worker = LoopWorker(0.0, 1.0)
    engine = make(worker, TableDraft(0.7), policy=policy, policies=POLICIES)
    _, done = await complete(engine, GenerationRequest(PROMPT, 30, ignore_eos=True))
    assert worker.seen == [] and done.usage.local_draft_passes > 0


async def test_amusd_names_itself_if_it_asked_no_local_draft(make: Make) -> None:
    engine = make(LoopWorker(0.001, 0.9), TableDraft(0.7), policy="amusd", policies=POLICIES)
    _, done = await complete(engine, GenerationRequest(PROMPT, 30, ignore_eos=True))
    assert done.usage.local_draft_passes == 0 and done.usage.accepted["worker"] > 0
    assert done.usage.why_not_local == "policy amusd did not ask it"


@pytest.mark.claim("a-local-tree-makes-at-most-k-passes-a-round")
async def test_a_local_tree_makes_at_most_k_passes_a_round(make: Make) -> None:
    engine = make(None, TableDraft(0.7, leaves=16), policy="colocated-tree", k=16, policies=POLICIES)
    sampling = Sampling(temperature=2.0, seed=1)
    tokens, done = await complete(engine, GenerationRequest(PROMPT, 12, sampling, ignore_eos=True))
    assert len(tokens) == 12 and 0 < done.usage.local_draft_passes <= 16 * done.usage.rounds


def test_each_maker_makes_the_policy_of_its_name() -> None:
    assert {name: POLICIES[name](DEFAULTS).name for name in PART.policies} == {name: name for name in PART.policies}
