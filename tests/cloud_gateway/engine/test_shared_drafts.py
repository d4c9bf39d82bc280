"""Requests share the gateway's own draft: a pass is one for all, at the price that each pays of it, and no key's long
prompts take its memory from another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.core.policies.policy import Action, Costs, Draft, LinkView, Policy, Verify
from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.drafts.gguf import LocalDraft
from edgespec.core.drafting.ranking import Asked
from edgespec.core.protocol.messages import Sampling
from tests.support.engines import Make, complete, engine_settings
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.until import until
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import VOCAB

CURVE = {1: 0.030, 64: 0.030}


class Noted(TableDraft):
    """Notes which requests share a pass; fails over those of `broken`."""

    def __init__(self, step_s: float = 0.004, broken: frozenset[int] = frozenset()) -> None:
        super().__init__(right=0.8)
        self.step_s = step_s
        self.broken = broken
        self.groups = list[list[Any]]()

    def draft(self, asked: Sequence[Asked]) -> Any:
        if self.broken.intersection(one.request for one in asked):
            raise ValueError("broken")
        self.groups.append([one.request for one in asked])
        return super().draft(asked)


def asked(number: int, policy: str = "local-chain", **more: Any) -> GenerationRequest:
    speculation = Speculation(policy=policy, sources=(), **more)
    return GenerationRequest([number, 3, 1], 24, Sampling(temperature=0), ignore_eos=True, speculation=speculation)


def turned(draft: TableDraft, requests: Sequence[GenerationRequest], turns: int = 40) -> Engine:
    """An engine after some turns, on a clock that stands still."""
    engine = Engine(TableTarget(slots=8), draft, engine_settings(), clock=lambda: 0.0, curve=CURVE)
    engine.use_loop(asyncio.new_event_loop())
    for request in requests:
        engine.submit(request)
    for _ in range(turns):
        engine.turn()
    return engine


def test_all_that_draft_share_a_pass_and_each_verify_pass_is_for_all() -> None:
    draft = Noted()
    engine = turned(draft, [asked(number, k=3) for number in range(4)], turns=30)
    assert draft.groups[9:12] == [[1, 2, 3, 4]] * 3, "each turn reads a prompt, or a part of one"
    usages = [one.generation.usage for one in engine.requests.active.values()]
    assert engine.stats.local_passes == draft.passes
    assert sum(usage.local_draft_passes for usage in usages) == sum(map(len, draft.groups))
    assert max(usage.rounds for usage in usages) == engine.stats.rounds, "no pass is for some of them"


def test_one_whose_draft_fails_costs_the_others_nothing() -> None:
    draft = Noted(broken=frozenset({2}))
    engine = turned(draft, [asked(number, k=2) for number in range(3)])
    assert not any(one.local for one in engine.requests.active.values() if one.id == 2)
    assert [1, 3] in draft.groups and engine.stats.faults == 1


class Bids(Policy):
    """Drafts if a step costs at most `worth_s`."""

    def __init__(self, worth_s: float) -> None:
        self.worth_s = worth_s
        self.drafted = 0

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        if costs.draft_s(1) > self.worth_s:
            return Verify(tree.best(4))
        self.drafted += 1
        return Draft((tree.root,))

    def withdrawn(self) -> None:
        self.drafted -= 1


@pytest.mark.parametrize(
    ("worths", "drafting"),
    [([0.0011] * 4, [1, 2, 3, 4]), ([0.0009, 0.0011, 0.003, 0.0011], []), ([0.0001, 0.0021, 0.0021, 0.0011], [2, 3])],
)
def test_the_most_draft_to_whom_the_pass_is_worth_their_share(worths: list[float], drafting: list[int]) -> None:
    draft = Noted(step_s=0.004)
    engine = turned(draft, [asked(number, "adaptive") for number in range(4)], turns=14)
    actives = list(engine.requests.active.values())
    bids = [Bids(worth_s) for worth_s in worths]
    for active, bid in zip(actives, bids, strict=True):
        active.generation.policy = bid
    draft.groups.clear()
    engine.turn()
    assert draft.groups == ([drafting] if drafting else [])
    assert [bid.drafted for bid in bids] == [number in drafting for number in range(1, 5)], "only what is made counts"


@pytest.mark.parametrize("policy", ["local-chain", "local-tree", "adaptive"])
async def test_shared_passes_of_a_real_draft_change_no_text(make: Make, tmp_path: Path, policy: str) -> None:
    local = LocalDraft(make_tiny_gguf(tmp_path / "tiny.gguf"), context=2048, requests=6, target_vocab_size=VOCAB)
    requests = [asked(number, policy, k=3, prefer="latency") for number in range(6)]
    plain = make(None, None, TableTarget(slots=6))
    alone = [(await complete(plain, asked(number, "plain")))[0] for number in range(6)]
    engine = make(None, local, TableTarget(slots=6, pass_s=0.002))
    together = await asyncio.gather(*(complete(engine, request) for request in requests))
    engine.stop()
    assert [tokens for tokens, _ in together] == alone
    passes = [done.usage.local_draft_passes for _, done in together]
    assert engine.stats.local_passes < 0.7 * sum(passes) or policy == "adaptive"
    local.shutdown()


LARGE = [1 + i % 30 for i in range(248)]


def request(key: str, prompt: list[int], count: int) -> GenerationRequest:
    return GenerationRequest(prompt, count, ignore_eos=True, key=key, cache_scope=key.encode())


@pytest.mark.claim("no-key-takes-the-drafts-memory-from-one-that-holds-less")
async def test_a_small_prompt_is_drafted_for_beside_three_large_ones(make: Make, tmp_path: Path) -> None:
    local = LocalDraft(make_tiny_gguf(tmp_path / "tiny.gguf"), context=768, requests=8, target_vocab_size=VOCAB)
    engine = make(None, local, TableTarget(slots=8), policy="local-chain", k=2)
    before = asyncio.create_task(complete(engine, request("before", [7, 1, 8], 120)))
    await until(lambda: engine.stats.local_passes > 4)
    large = [asyncio.create_task(complete(engine, request("large", [n, *LARGE], 120))) for n in range(3)]
    await until(lambda: engine.active == 4 and engine.stats.tokens > 40)
    found = [await complete(engine, request("after", [9, 2, 8], 20)), await before]
    for _, done in found:
        assert done.usage.why_not_local is None
        assert done.usage.local_draft_passes > 0.5 * done.usage.rounds
    refused = [(await one)[1].usage.why_not_local for one in large]
    assert "the local draft has no room for this request" in refused, "the memory was too small for all"
    local.shutdown()


class Offered(Policy):
    """Notes the probes that it is offered."""

    def __init__(self) -> None:
        self.probes: list[tuple[int, float] | None] = []

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        self.probes.append(costs.probe)
        return Verify(())


def test_a_probe_of_the_targets_curve_is_offered_to_every_policy() -> None:
    engine = turned(Noted(), [asked(number, "adaptive") for number in range(3)], turns=14)
    curve = engine.local.verify_s
    policies = [Offered() for _ in engine.requests.active]
    for active, policy in zip(engine.requests.active.values(), policies, strict=True):
        active.generation.policy = policy
    engine.turn()
    assert [policy.probes for policy in policies] == [[None]] * 3

    curve.sample(4, 0.050)
    while curve.probe is None:
        curve.sample(1, 0.030)
    offered = curve.probe
    engine.turn()
    assert [policy.probes[1:] for policy in policies] == [[offered]] * 3
