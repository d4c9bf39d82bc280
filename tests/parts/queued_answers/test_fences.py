"""Answers to prompts that wait: whose frames count, what a worker is sent, when an answer ends, who is asked next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.pool import scope_for
from cloud_gateway.parts.queued_answers.workers import FIRST_NUMBER
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import Close, Commit, Open, ToWorker, Tree
from tests.cloud_gateway.engine.test_several_workers import Declining
from tests.parts.queued_answers.test_queued_answers import COUNT, Writer, queued, wanted
from tools.doubles.engines import TableTarget
from tools.doubles.workers import NEAR, LoopWorker, OneWorker, Team

CHAIN = 16
"""Tokens of an answer that a frame brings at once."""
SLOW_PASS_S = 0.05
"""The request before the waiting one then runs for 8 s, in which a worker may be silent four times."""
pytestmark = pytest.mark.driven


def openings(worker: OneWorker) -> list[Open]:
    """The answers that a worker was asked for."""
    return [body for body in worker.seen if isinstance(body, Open) and body.request >= FIRST_NUMBER]


def ends(worker: OneWorker) -> list[str]:
    """Why a worker's answers ended."""
    return [body.reason for body in worker.seen if isinstance(body, Close) and body.request >= FIRST_NUMBER]


def chain(opening: Open, tokens: Sequence[int]) -> Tree:
    """A frame with these tokens one after the other, each of them certain."""
    parents = list(range(len(tokens)))
    certain = [1] * len(tokens)
    digest = prefix_hash(opening.tokens)
    return Tree(opening.request, 1, len(opening.tokens), digest, 1, parents, list(tokens), certain, certain)


class Answered(OneWorker):
    """Is asked for an answer, whose frame arrives over the link of `sender`."""

    def __init__(self, sender: str, tokens: Sequence[int]) -> None:
        super().__init__(replace(NEAR, id="lab-7", name="lab-7"))
        self.sender = sender
        self.tokens = tokens

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        super().send(worker, bodies)
        assert self.engine is not None

        for body in bodies:
            if isinstance(body, Open) and body.request >= FIRST_NUMBER:
                self.engine.post(FrameArrived(self.sender, chain(body, self.tokens)))


@pytest.mark.claim("a-frame-feeds-no-request-that-its-worker-was-not-given")
@pytest.mark.parametrize(("sender", "feeds"), [("lab-7", True), ("lab-8", False)], ids=["its worker", "another one"])
async def test_only_the_worker_that_writes_an_answer_feeds_it(sender: str, feeds: bool) -> None:
    plain, _, _ = await queued(None, 0)
    far = OneWorker(replace(NEAR, id="lab-8", name="lab-8", rtt_s=1.0, rtt_high_s=1.0))

    tokens, usage, _ = await queued(Team(Answered(sender, plain[:CHAIN]), far))

    assert tokens == plain
    assert openings(far) == []
    accepted = usage.sources["answers"]["accepted"]
    assert accepted >= CHAIN // 2 if feeds else accepted == 0


@pytest.mark.claim("what-is-kept-of-a-prompt-serves-only-requests-of-its-scope")
async def test_a_worker_that_writes_is_sent_a_scope_of_its_own() -> None:
    scope = b"scope of one key"
    worker = Writer()
    await queued(worker, request=wanted(cache_scope=scope))

    sent = [body.cache_scope for body in worker.seen if isinstance(body, Open)]
    assert len(sent) > len(openings(worker)) == 1
    assert {*sent} == {scope_for("lab-7", scope)} != {scope}


async def test_a_silent_worker_loses_its_answer_to_another_one() -> None:
    silent = OneWorker(replace(NEAR, id="lab-6", name="lab-6"))
    writer = Writer()
    _, usage, _ = await queued(Team(silent, writer), target=TableTarget(slots=1, pass_s=SLOW_PASS_S))

    assert len(openings(silent)) == len(openings(writer)) == 1
    assert ends(silent) == ["silent"]
    assert usage.sources["answers"]["accepted"] > COUNT / 2


async def test_a_worker_that_lost_an_answer_is_not_asked_for_it_again() -> None:
    silent = OneWorker(replace(NEAR, id="lab-6", name="lab-6"))
    await queued(silent, target=TableTarget(slots=1, pass_s=SLOW_PASS_S))
    assert len(openings(silent)) == 1 and ends(silent) == ["silent"]


@pytest.mark.parametrize("bound", ["max_tokens", "end token"])
async def test_an_answer_ends_where_its_completion_would(bound: str) -> None:
    plain, _, _ = await queued(None, 0)
    worker = Writer()

    if bound == "max_tokens":
        request = wanted(count=8)
        target = TableTarget(slots=1)
    else:
        request = GenerationRequest(wanted().tokens, COUNT, wanted().sampling, speculation=wanted().speculation)
        target = TableTarget(slots=1, eos=frozenset({plain[7]}))
    tokens, _, _ = await queued(worker, request=request, target=target)

    commits = [body for body in worker.seen if isinstance(body, Commit) and body.request >= FIRST_NUMBER]
    written = [token for body in commits for token in body.tokens]
    end = plain.index(plain[7]) + 1 if bound == "end token" else 8
    assert ends(worker) == ["written"]
    assert 0 < len(written) < end, "the last piece is not committed, since nothing follows it"
    assert written == plain[: len(written)]
    assert tokens[: end - 1] == plain[: end - 1]


async def test_an_answer_that_is_not_over_ends_when_its_request_runs() -> None:
    slow = LoopWorker(0.002, 1.0, 0.05, id="lab-7", name="lab-7")
    await queued(slow)
    (opening,) = openings(slow)
    assert ends(slow) == ["admitted"]

    at = [body for body in slow.seen if body.request == opening.request]
    assert isinstance(at[-1], Close), "nothing is sent for it afterwards"


async def test_a_worker_that_declines_a_waiting_prompt_is_not_asked_again() -> None:
    worker = Declining()
    await queued(worker, answers=2, target=TableTarget(slots=1, pass_s=SLOW_PASS_S))
    opened = [body for body in worker.seen if isinstance(body, Open)]
    assert len(opened) == len(openings(worker)) == 1
