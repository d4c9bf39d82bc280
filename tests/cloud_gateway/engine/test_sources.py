"""Sources without a draft model in the real engine: the text stays the same, the passes fall."""

from __future__ import annotations

import pytest

from cloud_gateway.api.usage import offload_share
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.policy import Action, Costs, Learnt, LinkView, Policy, Verify
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.accounting import Stats
from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.core.sources.asking import Sources
from cloud_gateway.core.sources.interface import SourceMakers, SourceStart
from cloud_gateway.core.sources.lookup import Lookup
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.exchange import Active, Stream
from cloud_gateway.engine.local_draft import LocalDrafting
from cloud_gateway.part import GatewayPart, choices_of
from tests.cloud_gateway.core.requests.test_generation import decoding
from tests.support.engines import complete, engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import ShortMemory
from tools.doubles.workers import LoopWorker

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
COUNT = 80
"""Tokens of a completion: the model's text repeats itself after some twenty."""


async def answer(
    sources: tuple[str, ...], *, draft: bool = False, worker: bool = False
) -> tuple[list[int], Usage, Stats]:
    wanted = GenerationRequest(
        PROMPT, COUNT, ignore_eos=True, speculation=Speculation(policy="adaptive", sources=sources)
    )
    with engines() as started:
        local = TableDraft(model=ShortMemory(right=0.7)) if draft else None
        engine = started(LoopWorker(0.002, 0.8) if worker else None, local, TableTarget(pass_s=0, model=ShortMemory()))
        tokens, done = await complete(engine, wanted)
        return tokens, done.usage, engine.stats


async def test_lookup_alone_saves_passes_and_changes_no_token() -> None:
    plain, before, _ = await answer(())
    found, usage, stats = await answer(("lookup",))
    assert found == plain
    assert before.rounds == COUNT and usage.rounds <= COUNT / 2
    counts = usage.sources["lookup"]
    assert usage.accepted == {"lookup": counts["accepted"]} and counts["accepted"] == COUNT - usage.rounds
    assert counts["proposed"] >= counts["verified"] >= counts["accepted"]
    assert stats.ended.sources["lookup"] == counts and counts["seconds"] > 0
    assert 0 < usage.undrafted_rounds <= usage.rounds and offload_share(usage) is None


@pytest.mark.parametrize("worker", [False, True])
async def test_with_other_drafts_the_text_is_the_same_too(worker: bool) -> None:
    plain, _, _ = await answer(())
    found, usage, _ = await answer(("lookup",), draft=True, worker=worker)
    assert found == plain
    assert usage.sources["lookup"]["accepted"] <= sum(usage.accepted.values())


class VerifiesAll(Policy):
    """Never waits. It learns one number, which no other policy could resume with."""

    name = "all"
    uses_sources = True

    def __init__(self, settings: PolicySettings) -> None:
        self.nodes = settings.verify_nodes

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        return Verify(tree.best(self.nodes))

    def state(self) -> Learnt:
        return {"all": [1.0]}


class VerifiesAlone(VerifiesAll):
    """The same without sources."""

    name = "alone"
    uses_sources = False


POLICIES = choices_of(
    [GatewayPart("x", policies={"all": lambda: VerifiesAll, "alone": lambda: VerifiesAlone})]
).policies
"""Those of the core and of a part."""


class Taught(Lookup):
    """Learns one number."""

    def state(self) -> list[float]:
        return [1.0]


async def test_a_parts_policy_uses_sources_if_it_says_so() -> None:
    starts: list[SourceStart] = []

    def lookup(start: SourceStart) -> Lookup:
        starts.append(start)
        return Taught(len(start.prompt))

    makers: SourceMakers = {"lookup": lookup}
    texts: list[list[int]] = []
    with engines() as started:
        engine = started(None, None, TableTarget(pass_s=0, model=ShortMemory()), policies=POLICIES, makers=makers)
        for policy in ("all", "alone", "all", "adaptive"):
            wanted = GenerationRequest(PROMPT, COUNT, ignore_eos=True, speculation=Speculation(policy=policy))
            tokens, done = await complete(engine, wanted)
            texts.append(tokens)
            assert ("lookup" in done.usage.accepted) is (policy != "alone")

    assert all(text == texts[0] for text in texts)
    first, second, other = starts
    assert not first.learnt and second.learnt and not other.learnt, "what one policy taught serves that policy"


class Another(Lookup):
    """A second source."""

    name = "another"


def test_each_source_is_timed_by_itself() -> None:
    generation = decoding("plain", worker=None)
    prompt = generation.request.tokens
    generation.sources = Sources([Lookup(len(prompt)), Another(len(prompt))], 16)
    ticks = [10.0, 11.0, 14.0, 20.0]
    drafting = LocalDrafting(None, StepCurve({1: 0.03}), Stats(), iter(ticks).__next__, lambda *_: None)
    active = Active(generation, Stream(lambda: None), 64)
    for _ in range(2):
        drafting.ask_sources(active)
    assert {name: counts["seconds"] for name, counts in generation.usage.sources.items()} == {"lookup": 1, "another": 3}
