"""What a worker brought decides which requests it gets next; estimates, fences and bounds of the link process.

The engine here is a loop without a clock of its own: each pass takes PERIOD_S of the streams' clock.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter

import pytest
from edgespec_vllm.link.streams import Ledger, Streams
from edgespec_vllm.messages import Closed, Opened, Tokens, Want

from cloud_gateway.core.requests.assignment import PATIENCE, READ
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.engine.exchange import WorkerGone
from edgespec.core.protocol.messages import Open
from integrations.vllm.tests.links import Kept, PlainEngine, Workers, tree

PERIOD_S = 0.05
READS = 200
"""Tokens of a prompt that the honest worker reads in a pass: 4,000 a second."""
PASSES = 60
"""Of one completion."""


class Link:
    """The streams of a link process, with its workers and a clock that a test moves."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.now = 0.0
        self.workers = Workers()
        self.streams = Streams(self.workers, lambda: self.now, ledger)
        self.engine = PlainEngine()
        self.opened = 0

    def open(self, prompt: list[int], engine: PlainEngine | None = None, scope: bytes = b"") -> int:
        """A request of which the engine sends the prompt at once; returns its number."""
        self.opened += 1
        engine = engine or self.engine
        self.streams.opened(engine, Opened(self.opened, ["default"], scope))
        self.streams.tokens(engine, Tokens(self.opened, 0, prompt))
        return self.opened

    def holder(self, number: int) -> str | None:
        """The worker that drafts for a request."""
        given = self.streams._of[self.engine, number].assignment
        if given is not None:
            return given.worker
        return None

    def opens(self) -> list[Open]:
        """What workers were sent first, so far."""
        return [body for _, body in self.workers.sent if isinstance(body, Open)]


def serve(link: Link, prompt_len: int, honest: str = "honest") -> Counter[str]:
    """One completion: passes by the worker that had the request, "" without one. Returns the counts.

    The honest worker reads READS tokens in a pass; from then on one candidate is accepted in each pass.
    """
    tokens = [random.Random(link.opened).randrange(90) for _ in range(prompt_len)]
    number = link.open(tokens)
    passes: Counter[str] = Counter()
    drafted = 0
    read = 0
    node = 1
    epoch = 0
    for _ in range(PASSES):
        holder = link.holder(number) or ""
        passes[holder] += 1
        stream = link.streams._of[link.engine, number]
        if holder == honest and stream.epoch != epoch:
            epoch = stream.epoch
            read = 0
            node = 1
        read += READS if holder == honest else 0
        ready = holder == honest and read >= prompt_len
        if ready:
            frame = tree(stream.id, epoch, tokens, node, [0], [7])
            link.streams.post(FrameArrived(honest, frame))
            node += 1
            drafted += 1
        link.now += PERIOD_S
        chosen = [7, 8] if ready else [8]
        start = len(tokens)
        tokens += chosen
        if link.holder(number) is not None:
            link.streams.tokens(link.engine, Tokens(number, start, chosen, 0, drafted, drafted))
        if Want in map(type, link.engine.received) and link.holder(number) is not None:
            have = link.streams._of[link.engine, number].have
            if have < len(tokens):
                link.streams.tokens(link.engine, Tokens(number, have, tokens[have:], 0, drafted, drafted))
        link.engine.received.clear()
    link.streams.closed(link.engine, Closed(number, drafted, drafted))
    return passes


@pytest.mark.parametrize("prompt_len", [30, 1000, 4000])
def test_a_silent_worker_does_not_get_every_request_first(prompt_len: int) -> None:
    link = Link()
    link.workers.add("silent", rtt_s=0.001)
    link.workers.add("honest", rtt_s=0.020)
    firsts: list[str] = []
    silent_passes = 0
    for _ in range(30):
        before = len(link.workers.sent)
        passes = serve(link, prompt_len)
        firsts.append(next(name for name, body in link.workers.sent[before:] if isinstance(body, Open)))
        silent_passes += passes["silent"]

    # Without the counts: 30 of 30, and 48 to 100 % of the passes.
    assert firsts.count("silent") <= 8
    assert silent_passes <= 0.15 * 30 * PASSES


def test_a_worker_that_was_passed_over_is_tried_again() -> None:
    link = Link()
    link.workers.add("silent", rtt_s=0.001)
    link.workers.add("honest", rtt_s=0.020)
    for _ in range(10):
        serve(link, 30)
    given = link.streams.merit.of("silent").requests
    for _ in range(20):
        serve(link, 30)
    assert 1 <= link.streams.merit.of("silent").requests - given <= 3


def test_merit_is_kept_by_the_key_that_the_gateway_names() -> None:
    class Keys(Ledger):
        def key(self, tag: str) -> str:
            return "key of the gateway"

    for ledger, key in ((Keys(), "key of the gateway"), (None, "")):
        link = Link(ledger)
        link.workers.add("honest")
        serve(link, 30)
        assert [*link.streams.merit.of("honest").means] == [key]
        assert link.streams.merit.of("honest").useless == 0
        assert link.streams.merit.of("honest").accepted == link.streams.accepted > 0


def test_frames_without_an_accepted_candidate_are_worth_nothing() -> None:
    link = Link()
    link.workers.add("w")
    tokens = [1, 2, 3]
    number = link.open(tokens)
    stream = link.streams._of[link.engine, number]
    for n in range(PATIENCE):
        link.streams.post(FrameArrived("w", tree(stream.id, 1, tokens, n + 1, [0], [5])))
        link.streams.tokens(link.engine, Tokens(number, len(tokens), [9], 0, n, 0))
        tokens.append(9)
    record = link.streams.merit.of("w")
    assert (record.frames, record.accepted, record.useless) == (PATIENCE, 0, 1)
    assert record.worth < 0.35


def passes_until_it_leaves(link: Link, prompt_len: int, first_frame_at: int = -1) -> int:
    """Passes without an accepted candidate after which the worker leaves a request."""
    tokens = [1] * prompt_len
    number = link.open(tokens)
    stream = link.streams._of[link.engine, number]
    holder = link.holder(number)
    for n in range(2000):
        if link.holder(number) != holder:
            link.streams.closed(link.engine, Closed(number))
            return n
        if n == first_frame_at:
            link.streams.post(FrameArrived(str(holder), tree(stream.id, stream.epoch, tokens, 1, [0], [5])))
        link.streams.tokens(link.engine, Tokens(number, len(tokens), [9]))
        tokens.append(9)
    raise AssertionError("it never leaves")


def test_a_worker_has_time_to_read_a_long_prompt() -> None:
    link = Link()
    link.workers.add("w")
    assert passes_until_it_leaves(link, 1600) == PATIENCE + 1600 // READ
    assert passes_until_it_leaves(link, 1600) == PATIENCE + 1600 // READ, "nobody else is free"


def test_a_worker_that_has_read_has_no_further_time_for_a_long_prompt() -> None:
    link = Link()
    link.workers.add("w")
    assert passes_until_it_leaves(link, 1600, first_frame_at=10) == 10 + PATIENCE


def test_a_silent_worker_has_no_time_to_read_while_another_is_free() -> None:
    link = Link()
    link.workers.add("silent", rtt_s=0.001)
    assert passes_until_it_leaves(link, 1600) == PATIENCE + 1600 // READ
    link.workers.add("other", rtt_s=0.5)
    assert passes_until_it_leaves(link, 1600) == PATIENCE


@pytest.mark.parametrize("commits", [4, 8, 16])
def test_the_estimate_of_the_period_does_not_depend_on_the_length(commits: int) -> None:
    link = Link()
    link.workers.add("w", step_s=0.0124)
    for _ in range(20):
        number = link.open([1, 2, 3])
        for n in range(commits):
            link.now += PERIOD_S
            link.streams.tokens(link.engine, Tokens(number, 3 + n, [9]))
        link.now += 1.0
        link.streams.closed(link.engine, Closed(number))
    assert link.streams._periods_s[link.engine] == pytest.approx(PERIOD_S, rel=0.01)
    assert link.streams.capacity(link.workers.views["w"], [link.engine]) == 2


def test_each_engine_has_an_estimate_of_its_own() -> None:
    link = Link()
    link.workers.add("w", step_s=0.005)
    slow = PlainEngine()
    for n in range(30):
        for engine, number, period_s in ((link.engine, 1, 0.011), (slow, 2, 0.1)):
            if n == 0:
                link.open([1, 2], engine)
                continue
            link.now = n * period_s
            link.streams.tokens(engine, Tokens(number, 1 + n, [9]))
        if n == 0:
            link.streams.closed(link.engine, Closed(1))
            link.streams.opened(link.engine, Opened(1, ["default"]))
            link.streams.tokens(link.engine, Tokens(1, 0, [1, 2]))
    worker = link.workers.views["w"]
    assert link.streams.capacity(worker, [slow]) == 10
    assert link.streams.capacity(worker, [slow, slow, link.engine]) == 1, "the shortest period decides"
    link.streams.gone(slow)
    assert slow not in link.streams._periods_s


@pytest.mark.claim("a-frame-feeds-no-request-that-its-worker-was-not-given")
def test_a_frame_of_another_linked_worker_reaches_no_request() -> None:
    link = Link()
    link.workers.add("w", rtt_s=0.001)
    link.workers.add("v", rtt_s=0.020)
    numbers = [link.open([1, 2, 3]), link.open([1, 2, 3])]
    assert [link.holder(number) for number in numbers] == ["w", "v"], "v has a request of its own"
    stream = link.streams._of[link.engine, 1]
    link.streams.post(FrameArrived("v", tree(stream.id, stream.epoch, [1, 2, 3], 1, [0], [7])))
    assert link.engine.chains() == []
    link.streams.post(FrameArrived("w", tree(stream.id, stream.epoch, [1, 2, 3], 1, [0], [7])))
    assert [chain.tokens for chain in link.engine.chains()] == [[7]]


@pytest.mark.claim("a-frame-feeds-no-request-that-its-worker-was-not-given")
def test_a_frame_of_an_assignment_that_ended_reaches_no_request() -> None:
    link = Link()
    link.workers.add("w")
    number = link.open([1, 2, 3])
    stream = link.streams._of[link.engine, number]
    link.streams.post(WorkerGone("w", "regrouped"))  # and it is given to the same worker again
    link.streams.tokens(link.engine, Tokens(number, 3, [4]))
    assert (link.holder(number), stream.epoch) == ("w", 2)
    for epoch in (1, 3):
        link.streams.post(FrameArrived("w", tree(stream.id, epoch, [1, 2, 3, 4], 1, [0], [7])))
    assert link.engine.chains() == []
    link.streams.post(FrameArrived("w", tree(stream.id, 2, [1, 2, 3, 4], 1, [0], [7])))
    assert [chain.tokens for chain in link.engine.chains()] == [[7]]


def test_candidates_verified_late_are_those_of_the_former_worker() -> None:
    kept = Kept()
    link = Link(kept)
    link.workers.add("w")
    number = link.open([1, 2, 3])
    link.workers.add("v")
    del link.workers.views["w"]
    link.streams.post(WorkerGone("w", "gone"))
    assert link.holder(number) == "v"
    link.streams.tokens(link.engine, Tokens(number, 3, [4, 5], 0, 2, 1))
    link.streams.tokens(link.engine, Tokens(number, 5, [6, 7], 0, 4, 2))
    assert [entry for entry in kept.found if entry[0] == "verified"] == [
        ("verified", "", "w", 2, 1),
        ("verified", "", "v", 2, 1),
    ]
    given = link.streams._of[link.engine, number].assignment
    assert given is not None
    assert (given.name, given.accepted) == ("v", 1)


def test_the_requests_of_an_engine_that_went_are_given_to_nobody() -> None:
    link = Link()
    link.workers.add("w")
    for _ in range(3):
        link.open([1, 2, 3])
    link.streams.gone(link.engine)
    assert len(link.opens()) == 1
    assert (link.streams.open, link.streams.helped) == (0, 0)


@pytest.mark.claim("a-worker-cannot-find-out-a-cache-salt")
def test_scopes_are_keyed_and_differ_between_workers_and_processes() -> None:
    digest = hashlib.sha256(b"alice").digest()
    scopes: list[bytes] = []
    for name in ("w", "w", "v"):
        link = Link()
        link.workers.add(name)
        for _ in range(2):
            number = link.open([1, 2, 3], scope=digest)
            link.streams.closed(link.engine, Closed(number))
        first, second = (opened.cache_scope for opened in link.opens())
        assert first == second, "the prefixes that a worker holds are used again"
        scopes.append(first)
    assert len({*scopes, digest, hashlib.sha256(digest).digest()}) == 5

    link = Link()
    for name in ("w", "v"):
        link.workers.add(name)
        link.open([1, 2, 3], scope=digest)
    assert len({opened.cache_scope for opened in link.opens()}) == 2, "two workers cannot compare them"


def test_a_request_without_a_scope_is_sent_without_one() -> None:
    link = Link()
    link.workers.add("w")
    link.open([1, 2, 3])
    assert [opened.cache_scope for opened in link.opens()] == [b""]
