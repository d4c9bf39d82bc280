"""Each frame is counted once, and usage and totals read the same counts."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.api.usage import timings
from cloud_gateway.core.policies.alone import Plain
from cloud_gateway.core.requests.accounting import FrameLedger, Submission
from cloud_gateway.core.requests.events import Admitted, FrameArrived, Preempted, WorkerChanged
from cloud_gateway.core.requests.generation import Bounds, Generation
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.verify.verification import SharedNoise
from edgespec.core.drafting.ranking import Spread
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import Tree

PROMPT = [1, 2, 3]


def drafted_for(whole: FrameLedger) -> Generation:
    """A request that worker `w` drafts for."""
    request = GenerationRequest(PROMPT, 10)
    verification = SharedNoise(request.sampling, request.tokens, Spread())
    found = Generation(1, request, Plain(), verification, Bounds(100), Submission(frames=whole), offload=True)
    found.handle(Admitted(2), 0.0)
    found.handle(WorkerChanged("w", "assigned"), 0.0)
    return found


def frame(first: int, *, epoch: int = 1, prefix: list[int] = PROMPT) -> Tree:
    return Tree(1, epoch, len(prefix), prefix_hash(prefix), first, [0], [first], [100], [500])


def test_cached_tokens_of_the_prompt_are_not_counted_as_processed() -> None:
    generation = drafted_for(FrameLedger())
    usage = generation.account.usage
    assert (usage.cached_tokens, timings(usage).cache_n, timings(usage).prompt_n) == (2, 2, 1)
    generation.handle(Preempted(), 1.0)
    generation.handle(Admitted(0), 2.0)
    assert timings(usage).cache_n == 2, "tokens that are read again after a pause are no prompt"


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_every_frame_received_is_used_stale_or_rejected(seed: int) -> None:
    rng = random.Random(seed)
    whole = FrameLedger()
    requests = [drafted_for(whole), drafted_for(whole)]
    following = [1, 1]
    sent = 0
    for _ in range(20):
        i = rng.randrange(2)
        kind = rng.choice(("good", "prefix", "epoch", "worker", "ids"))
        first = following[i] + (kind == "ids")
        one = frame(first, epoch=1 + (kind == "epoch"), prefix=[9, 9, 9] if kind == "prefix" else PROMPT)
        requests[i].handle(FrameArrived("x" if kind == "worker" else "w", one), 1.0)
        following[i] += kind in ("good", "prefix")
        sent += 1
    for counts in (whole.counts, *(request.usage.frames for request in requests)):
        assert counts["received"] == counts["used"] + counts["stale"] + counts["rejected"]
    assert whole.counts["received"] == sent
    assert whole.counts == {kind: sum(request.usage.frames[kind] for request in requests) for kind in whole.counts}, (
        "usage and totals are one ledger"
    )
