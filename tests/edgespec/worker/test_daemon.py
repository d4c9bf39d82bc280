"""The worker's loop with a real (tiny) model in llama.cpp, driven as the link would drive it."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.algorithm2 import DraftRule
from edgespec.core.drafting.best_first import BestFirstRule, Starts
from edgespec.core.drafting.together import Reading
from edgespec.core.errors import ModelError, RemoteProtocolError
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import Close, Commit, Decline, Open, Sampling, StepTimes, Tree
from edgespec.llamacpp.context import Row
from edgespec.llamacpp.drafter import Drafter
from edgespec.worker.daemon import FAILED, MAX_MODEL_FAILURES, Daemon, Outlet
from tests.support.idle import Idle

PROMPT = [5, 6, 7, 8, 9]
RULE = DraftRule(branching=2, theta=0.5, sequences=4, max_depth=8)


class Desk:
    """Collects what the daemon sends to the link."""

    def __init__(self) -> None:
        self.sent: queue.Queue[Tree | Decline] = queue.Queue()
        self.reports: list[StepTimes] = []
        self.broken: queue.Queue[RemoteProtocolError] = queue.Queue()
        self.daemon: Daemon
        self.open = True
        self.wake = Idle()

    def send(self, messages: Sequence[Tree | StepTimes | Decline]) -> None:
        for message in messages:
            if isinstance(message, StepTimes):
                self.reports.append(message)
                continue
            self.sent.put(message)
            if self.open and isinstance(message, Tree):
                self.daemon.writable()

    def next_tree(self) -> Tree:
        message = self.sent.get(timeout=10)
        assert isinstance(message, Tree), message
        return message

    def settle(self) -> list[Tree | Decline]:
        """Everything sent until there is nothing more to do."""
        self.wake.until_idle()
        return [self.sent.get_nowait() for _ in range(self.sent.qsize())]


@pytest.fixture
def start(model: Path) -> Iterator[Callable[..., Desk]]:
    running: list[tuple[Desk, threading.Thread]] = []

    def begin(rule: DraftRule = RULE, **options: object) -> Desk:
        desk = Desk()
        drafter = Drafter(model, context=2048, sequences=4, prefill_batch=128)
        outlet = Outlet(desk.send, desk.broken.put)
        desk.daemon = Daemon(drafter, Starts(rule), outlet, reading=Reading(64), _wake=desk.wake, **options)
        thread = threading.Thread(target=desk.daemon.run)
        thread.start()
        running.append((desk, thread))
        return desk

    yield begin
    for desk, thread in running:
        desk.daemon.stop()
        thread.join(10)
        assert not thread.is_alive()
        desk.daemon.drafter.shutdown()


def opened(request: int = 1, prompt: list[int] = PROMPT) -> Open:
    return Open(request, 1, len(prompt), prompt, Sampling())


def test_it_streams_a_tree_that_a_gateway_can_merge_up_to_the_depth(start: Callable[..., Desk]) -> None:
    desk = start()
    desk.daemon.take(opened())
    tree = CandidateTree(PROMPT)
    for frame in desk.settle():
        assert isinstance(frame, Tree)
        merged = tree.merge("w", frame, "w")
        assert merged.fresh == len(frame.tokens)
    assert tree.depth() == RULE.max_depth


def test_a_commit_moves_the_tree_on_and_the_frames_under_way_still_fit(start: Callable[..., Desk]) -> None:
    desk = start()
    tree = CandidateTree(PROMPT)
    prefix = list(PROMPT)
    desk.daemon.take(opened())
    for _ in range(20):
        tree.merge("w", desk.next_tree(), "w")
        best = tree.best_leaf()
        chosen = [*best.path(tree.root)[:2], 3]
        tree.advance(chosen)
        desk.daemon.take(Commit(1, 1, len(prefix), chosen, prefix_hash([*prefix, *chosen]), 1, 1))
        prefix += chosen
    for frame in desk.settle():
        assert isinstance(frame, Tree)
        tree.merge("w", frame, "w")
    assert tree.depth() > 0 and desk.broken.empty()
    assert desk.daemon.stats.committed == len(prefix) - len(PROMPT) and desk.daemon.stats.matched > 0


def test_while_the_link_is_busy_nodes_wait_and_a_commit_prunes_them(start: Callable[..., Desk]) -> None:
    desk = start()
    desk.open = False
    desk.daemon.take(opened())
    first = desk.next_tree()
    assert desk.settle() == [], "the link has not said that it can take more"
    desk.daemon.take(Commit(1, 1, len(PROMPT), [60], prefix_hash([*PROMPT, 60])))
    assert desk.settle() == []
    desk.daemon.writable()
    second = desk.next_tree()
    assert second.prefix_len == len(PROMPT) + 1
    assert second.first == first.first + len(first.tokens), "what was pruned never got a number"


def test_several_requests_share_each_pass_of_the_model(start: Callable[..., Desk]) -> None:
    rule = BestFirstRule(sequences=4, max_depth=3)
    numbers = (1, 2, 3, 4)
    together = start(rule)
    alone = start(rule)
    together.daemon.pause(True)
    for number in numbers:
        together.daemon.take(opened(number, [number, *PROMPT]))
    together.daemon.pause(False)
    first: dict[int, Sequence[int]] = {}
    for frame in together.settle():
        assert isinstance(frame, Tree)
        first.setdefault(frame.request, frame.tokens)
    for number in numbers:
        alone.daemon.take(opened(number, [number, *PROMPT]))
        frame = alone.settle()[0]
        assert isinstance(frame, Tree) and first[number] == frame.tokens
        alone.daemon.take(Close(number, 1, "stop"))
    assert together.daemon.stats.steps * 2 < alone.daemon.stats.steps


def test_a_sampled_request_is_ranked_with_the_targets_own_noise(start: Callable[..., Desk]) -> None:
    desk = start()
    seeds = (1, 2, 3)
    for seed in seeds:
        sampling = Sampling(temperature=1.0, seed=seed, presence_penalty=0.5)
        desk.daemon.take(Open(seed, 1, len(PROMPT), PROMPT, sampling))
    desk.daemon.take(opened(9))
    first: dict[int, Any] = {}
    for frame in desk.settle():
        assert isinstance(frame, Tree)
        first.setdefault(frame.request, frame.tokens[0])
    assert len({first[seed] for seed in seeds} | {first[9]}) > 1, "another seed, another best token"
    desk.daemon.take(Commit(1, 1, len(PROMPT), [first[1]], prefix_hash([*PROMPT, first[1]])))
    assert desk.settle() and desk.broken.empty()


def test_a_request_too_many_or_too_long_is_declined_with_the_reason(start: Callable[..., Desk]) -> None:
    desk = start(max_requests=1)
    desk.daemon.take(opened(1))
    desk.daemon.take(opened(2))
    desk.daemon.take(Close(1, 1, "stop"))
    desk.daemon.take(Open(3, 1, 100_000, PROMPT, Sampling()))
    declined = {message.request: message.reason for message in desk.settle() if isinstance(message, Decline)}
    assert "1 requests are open" in declined[2] and "context" in declined[3]


@pytest.mark.claim("what-is-kept-of-a-prompt-serves-only-requests-of-its-scope")
def test_what_is_kept_of_a_prompt_serves_only_requests_of_its_scope(start: Callable[..., Desk]) -> None:
    desk = start()
    drafter = desk.daemon.drafter
    shared = []
    opens = drafter.open
    drafter.open = lambda *request: shared.append(opens(*request))  # type: ignore[method-assign]
    scopes = [b"alice", b"bob", b"alice", b"", b""]
    for number, scope in enumerate(scopes, 1):
        desk.daemon.take(Open(number, 1, len(PROMPT), PROMPT, Sampling(), scope))
        assert desk.next_tree()
        desk.daemon.take(Close(number, 1, "stop"))
        desk.settle()
    assert shared == [0, 0, len(PROMPT), 0, 0]


def test_pausing_stops_the_drafting_and_going_on_resumes_it(start: Callable[..., Desk]) -> None:
    desk = start()
    desk.daemon.pause(True)
    desk.daemon.take(opened())
    assert desk.settle() == []
    desk.daemon.pause(False)
    assert desk.settle()


def test_a_new_link_begins_with_no_requests(start: Callable[..., Desk]) -> None:
    desk = start()
    desk.daemon.take(opened())
    desk.settle()
    desk.daemon.forget_all()
    desk.daemon.take(Commit(1, 1, len(PROMPT), [3], prefix_hash([*PROMPT, 3])))
    assert desk.settle() == [] and desk.daemon.open_requests == 0


def test_a_closed_or_replaced_epoch_is_not_served(start: Callable[..., Desk]) -> None:
    desk = start()
    desk.daemon.take(opened())
    desk.settle()
    desk.daemon.take(Open(1, 2, len(PROMPT), PROMPT, Sampling()))
    frames = desk.settle()
    assert frames and all(isinstance(frame, Tree) and frame.epoch == 2 for frame in frames)
    desk.daemon.take(Close(1, 1, "an old one"))
    desk.daemon.take(Commit(1, 1, len(PROMPT), [4], prefix_hash([*PROMPT, 4])))
    desk.daemon.take(Commit(1, 2, len(PROMPT), [3], prefix_hash([*PROMPT, 3])))
    assert desk.settle() and desk.broken.empty(), "messages of a former epoch do not reach the present one"


@pytest.mark.parametrize(
    ("message", "reason"),
    [(Commit(1, 1, 99, [3], b"x" * 32), "prefix"), (Commit(1, 1, len(PROMPT), [3], b"x" * 32), "prefix")],
)
def test_a_protocol_violation_is_reported_and_the_thread_continues(
    start: Callable[..., Desk], message: Commit | Open, reason: str
) -> None:
    desk = start()
    desk.daemon.take(opened())
    desk.daemon.take(message)
    assert desk.broken.get(timeout=10).reason == reason
    desk.daemon.forget_all()
    desk.daemon.take(opened(7))
    assert any(isinstance(frame, Tree) and frame.request == 7 for frame in desk.settle())


# --- one request's failure ----------------------------------------------------------------------------------------

CANARY = 61
"""A token of the prompts that make something fail; it must not show in a log."""


def declined(desk: Desk, count: int) -> dict[int, str]:
    """The reasons of the next declined requests, without a time limit."""
    found: dict[int, str] = {}
    while len(found) < count:
        message = desk.sent.get(timeout=20)
        if isinstance(message, Decline):
            found[message.request] = message.reason
    return found


def serves_on(desk: Desk, number: int) -> None:
    """Asserts that a request that stayed open is still drafted for, and so is a new one."""
    for message in (Commit(number, 1, len(PROMPT), [3], prefix_hash([*PROMPT, 3])), opened(number + 100)):
        desk.daemon.take(message)
    wanted = {number, number + 100}
    while wanted:
        tree = desk.sent.get(timeout=20)
        if isinstance(tree, Tree) and (tree.request != number or tree.prefix_len > len(PROMPT)):
            wanted.discard(tree.request)


class Poisoned:
    """Makes the real model's decode fail for batches with a certain token, the first `times` of them."""

    def __init__(self, desk: Desk, error: Callable[[], Exception], times: int = 10**6) -> None:
        context = desk.daemon.drafter._llama
        decode = context.decode
        self.failed = 0

        def poisoned(rows: Sequence[Row]) -> bool:
            if any(row.token == CANARY for row in rows) and self.failed < times:
                self.failed += 1
                raise error()
            return decode(rows)

        context.decode = poisoned  # type: ignore[method-assign]


FAILURES = [lambda: ModelError(f"code -3 at {CANARY}"), lambda: ValueError(f"token {CANARY}"), MemoryError]


@pytest.mark.claim("a-failure-of-one-request-declines-it-and-the-others-go-on")
@pytest.mark.parametrize("failure", FAILURES, ids=["llama.cpp", "ours", "memory"])
@pytest.mark.parametrize("prompt", [[*PROMPT, CANARY], [CANARY] * 200], ids=["in a step", "in a catch-up"])
def test_a_failure_of_one_request_declines_it_and_the_others_go_on(
    start: Callable[..., Desk], caplog: pytest.LogCaptureFixture, failure: Callable[[], Exception], prompt: list[int]
) -> None:
    desk = start()
    ids = len(desk.daemon.drafter._free)
    Poisoned(desk, failure)
    desk.daemon.take(opened(1))
    for number in (2, 3, 4, 5, 6):
        desk.daemon.take(opened(number, prompt))
    reasons = declined(desk, 5)
    assert reasons == dict.fromkeys((2, 3, 4, 5, 6), FAILED)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and "declined" in lines[0] and type(failure()).__name__ in lines[0], "once a minute"
    assert not any(str(CANARY) in line.split(" at ")[0] or f"token {CANARY}" in line for line in lines)
    serves_on(desk, 1)
    desk.daemon.forget_all()
    desk.daemon.take(Open(900, 1, 10**6, PROMPT, Sampling()))  # is declined when all before it is done
    declined(desk, 1)
    assert len(desk.daemon.drafter._free) == ids, "no sequence of the model is lost"


def test_nothing_is_kept_of_a_prompt_whose_reading_failed(start: Callable[..., Desk]) -> None:
    desk = start()
    drafter = desk.daemon.drafter
    shared = []
    opens = drafter.open
    drafter.open = lambda *request: shared.append(opens(*request))  # type: ignore[method-assign]
    Poisoned(desk, MemoryError, times=1)
    prompt = [*[7] * 300, CANARY]
    for number in (1, 2, 3):
        desk.daemon.take(Open(number, 1, len(prompt), prompt, Sampling(), b"alice"))
        assert declined(desk, 1) if number == 1 else desk.next_tree()
        desk.daemon.take(Close(number, 1, "stop"))
        desk.settle()
    assert shared == [0, 0, len(prompt)]


def test_a_failure_between_the_model_and_the_link_declines_the_request(start: Callable[..., Desk]) -> None:
    desk = start()
    desk.daemon.take(opened(1))
    desk.daemon.take(opened(2))
    while desk.next_tree().request != 2:
        pass
    broken = desk.daemon._requests[2]
    for name in ("record", "delta", "candidates"):
        setattr(broken, name, lambda *_: 1 / 0)
    desk.daemon.take(Commit(2, 1, len(PROMPT), [3], prefix_hash([*PROMPT, 3])))
    assert declined(desk, 1) == {2: FAILED}
    serves_on(desk, 1)


@pytest.mark.claim("a-failure-of-one-request-declines-it-and-the-others-go-on")
def test_a_token_that_the_draft_does_not_have_declines_the_request(start: Callable[..., Desk]) -> None:
    desk = start()
    for number in (1, 2):
        desk.daemon.take(opened(number))
    desk.daemon.take(Commit(2, 1, len(PROMPT), [64], prefix_hash([*PROMPT, 64])))
    desk.daemon.take(Open(3, 1, 1, [1_000_000], Sampling()))
    reasons = declined(desk, 2)
    assert set(reasons) == {2, 3} and all("vocabulary of 64" in reason for reason in reasons.values())
    assert desk.broken.empty()
    serves_on(desk, 1)


@pytest.mark.claim("the-loop-ends-when-the-model-itself-fails-again-and-again")
def test_the_loop_ends_when_the_model_itself_fails_again_and_again(model: Path) -> None:
    desk = Desk()
    drafter = Drafter(model, context=2048, sequences=4)
    desk.daemon = Daemon(drafter, Starts(RULE), Outlet(desk.send, desk.broken.put))
    context = drafter._llama
    decode = context.decode
    calls = itertools.count()

    def failing(rows: Sequence[Row]) -> bool:
        if next(calls) != 2:  # one success between resets the count
            raise ModelError("llama.cpp could not evaluate a batch")
        return decode(rows)

    context.decode = failing  # type: ignore[method-assign]
    for number in range(1, 9):
        desk.daemon.take(opened(number))
    with pytest.raises(ModelError, match="could not evaluate"):
        desk.daemon.run()
    shared = 2
    assert next(calls) == shared + 2 + 2 * MAX_MODEL_FAILURES, "a request and its check each, beside shared passes"
    drafter.shutdown()
