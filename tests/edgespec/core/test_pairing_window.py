"""The gateway's pairing window: one code at a time, burnt by any failure, closed by five, by time or by success."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgespec.core.errors import EdgespecError, LocalProtocolError, PairingError, RemoteProtocolError
from edgespec.core.pairing import GatewayExchange, Party, State, WorkerExchange
from edgespec.core.pairing_messages import Accepted, Code, PairingFailed, PairingMessage, Reason
from edgespec.core.pairing_window import (
    ATTEMPT_S,
    MAX_FAILURES,
    TRANSITIONS,
    WINDOW_S,
    Closed,
    Failed,
    Paired,
    PairingWindow,
    Shown,
    Window,
)
from edgespec.core.signing import SigningKey

SPKI = hashlib.sha256(b"the gateway's TLS key").digest()
RELAY = hashlib.sha256(b"a relay's TLS key").digest()
ME = Party(SigningKey(b"g" * 32), "gateway")
THEM = Party(SigningKey(b"w" * 32), "lab-7")
_random = random.Random(5)


def next_code(entropy: Callable[[int], bytes], avoid: int) -> Code:
    return Code(avoid % 99 + 1, (entropy(4).hex(), "acorn"))


def window() -> PairingWindow:
    return PairingWindow(ME, SPKI, next_code, _random.randbytes)


def attempt(w: PairingWindow, code: Code, now: float, spki: bytes = SPKI) -> GatewayExchange:
    """A whole attempt of a worker with `code`; raises as the window does."""
    worker = WorkerExchange(code, THEM, spki, _random.randbytes)
    message: PairingMessage | None = worker.start()
    exchange = w.begin(now)
    while message is not None:
        answer = w.receive(exchange, message, now)
        if answer is None:
            worker.receive(w.stored(exchange, THEM.name))
            break
        message = worker.receive(answer)
    return exchange


def test_a_worker_with_the_code_shown_is_paired_and_the_window_closes() -> None:
    w = window()
    code = w.open(10.0)
    assert w.wake_at == 10.0 + WINDOW_S
    exchange = attempt(w, code, 20.0)
    assert [type(event) for event in w.events()] == [Shown, Paired]
    assert exchange.peer.key == THEM.key.public
    assert (w.state, w.wake_at) == (Window.CLOSED, None)
    with pytest.raises(PairingFailed) as failure:
        attempt(w, code, 21.0)
    assert failure.value.reason is Reason.WINDOW


def test_a_failed_attempt_burns_its_code_and_shows_another() -> None:
    w = window()
    code = w.open(0.0)
    with pytest.raises(PairingFailed):
        attempt(w, Code(code.nameplate, ("wrong", "words")), 1.0)
    shown, failed, again = w.events()
    assert isinstance(shown, Shown) and isinstance(again, Shown)
    assert failed == Failed(Reason.CODE, MAX_FAILURES - 1)
    assert again.code.nameplate != code.nameplate
    with pytest.raises(PairingFailed) as failure:
        attempt(w, code, 2.0)  # the right words, too late
    assert failure.value.reason is Reason.NAMEPLATE
    w.events()
    assert w.failures == 2


def test_five_failures_close_the_window_until_the_operator_asks_again() -> None:
    w = window()
    code = w.open(0.0)
    w.events()
    for left in range(MAX_FAILURES - 1, -1, -1):
        with pytest.raises(PairingFailed):
            attempt(w, Code(code.nameplate, ("wrong",)), 1.0)
        events = w.events()
        assert Failed(Reason.CODE, left) in events
        code = next((event.code for event in events if isinstance(event, Shown)), code)
    assert events[-1] == Closed(Reason.BURNT)
    assert w.state is Window.CLOSED
    with pytest.raises(PairingFailed, match="five attempts failed") as failure:
        attempt(w, code, 2.0)
    assert failure.value.reason is Reason.BURNT
    attempt(w, w.open(3.0), 4.0)
    assert w.failures == 0


def test_the_window_lasts_120_seconds_whatever_happens_in_it() -> None:
    w = window()
    code = w.open(0.0)
    with pytest.raises(PairingFailed):
        attempt(w, Code(1, ("wrong",)), WINDOW_S - 1)
    code = next(event.code for event in reversed(w.events()) if isinstance(event, Shown))
    with pytest.raises(PairingFailed, match="expired") as failure:
        attempt(w, code, WINDOW_S)
    assert failure.value.reason is Reason.EXPIRED
    assert w.events() == [Closed(Reason.EXPIRED)]
    w.open(500.0)
    w.poll(500.0 + WINDOW_S - 0.001)
    assert w.state is Window.OPEN


def test_an_attempt_that_outlives_the_window_fails() -> None:
    w = window()
    worker = WorkerExchange(w.open(0.0), THEM, SPKI, _random.randbytes)
    exchange = w.begin(WINDOW_S - 1)
    reply = w.receive(exchange, worker.start(), WINDOW_S - 1)
    assert reply is not None
    confirm = worker.receive(reply)
    assert confirm is not None
    with pytest.raises(PairingFailed) as failure:
        w.receive(exchange, confirm, WINDOW_S + 1)
    assert failure.value.reason is Reason.EXPIRED
    assert exchange.state is State.FAILED


def test_while_one_worker_is_paired_another_is_told_to_wait_at_no_cost() -> None:
    w = window()
    code = w.open(0.0)
    worker = WorkerExchange(code, THEM, SPKI, _random.randbytes)
    exchange = w.begin(0.0)
    reply = w.receive(exchange, worker.start(), 0.0)
    with pytest.raises(PairingFailed) as failure:
        attempt(w, code, 1.0)
    assert failure.value.reason is Reason.BUSY
    assert w.failures == 0
    assert reply is not None
    confirm = worker.receive(reply)
    assert confirm is not None and w.receive(exchange, confirm, 2.0) is not None


def test_a_silent_attempt_ends_by_itself_and_its_late_messages_reach_no_other() -> None:
    w = window()
    silent = WorkerExchange(w.open(0.0), THEM, SPKI, _random.randbytes)
    old = w.begin(0.0)
    reply = w.receive(old, silent.start(), 0.0)
    assert w.wake_at == ATTEMPT_S
    w.poll(ATTEMPT_S)
    assert Failed(Reason.ABANDONED, MAX_FAILURES - 1) in w.events()
    new = w.begin(ATTEMPT_S + 1)
    assert reply is not None
    late = silent.receive(reply)
    assert late is not None
    with pytest.raises(PairingFailed):
        w.receive(old, late, ATTEMPT_S + 1)
    assert (new.state, w.failures) == (State.NEW, 1)


def test_a_worker_that_cannot_be_stored_is_not_paired() -> None:
    w = window()
    worker = WorkerExchange(w.open(0.0), THEM, SPKI, _random.randbytes)
    exchange = w.begin(0.0)
    message: PairingMessage | None = worker.start()
    while exchange.state is not State.PROVEN:
        assert message is not None
        answer = w.receive(exchange, message, 0.0)
        message = worker.receive(answer) if answer is not None else None
    w.abandon(exchange, Reason.STORAGE)
    assert Failed(Reason.STORAGE, MAX_FAILURES - 1) in w.events()
    assert worker.state is State.ACCEPTED
    with pytest.raises(PairingFailed):
        w.stored(exchange, THEM.name)


def test_the_operator_may_close_the_window_at_any_time() -> None:
    w = window()
    w.close()
    assert w.events() == []
    code = w.open(0.0)
    exchange = w.begin(0.0)
    w.close()
    assert w.events()[-1] == Closed(None)
    assert exchange.state is State.FAILED
    with pytest.raises(PairingFailed) as failure:
        attempt(w, code, 1.0)
    assert failure.value.reason is Reason.WINDOW


def test_only_one_window_is_open_at_a_time() -> None:
    w = window()
    w.open(0.0)
    with pytest.raises(PairingError, match="open already"):
        w.open(1.0)


def test_what_the_table_does_not_list_is_a_bug_of_ours() -> None:
    w = window()
    events = {event for _, event in TRANSITIONS}
    for event in events:
        if (Window.CLOSED, event) not in TRANSITIONS:
            with pytest.raises(LocalProtocolError):
                w._go(event)


class Walk(RuleBasedStateMachine):
    """Honest, guessing, relaying, replaying and silent peers in any order, and time that passes as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.window = window()
        self.now = 0.0
        self.opened_at = -1e9
        self.shown: Code | None = None
        self.burnt: set[Code] = set()
        self.recorded: list[PairingMessage] = []
        self.honest: dict[GatewayExchange, tuple[WorkerExchange, PairingMessage | None]] = {}
        self.paired = self.failures = 0

    def drain(self) -> None:
        for event in self.window.events():
            if isinstance(event, Shown):
                assert event.code not in self.burnt
                self.shown = event.code
                continue
            if isinstance(event, Failed):
                self.failures += 1
                assert event.left == MAX_FAILURES - self.failures >= 0
            if isinstance(event, Paired):
                self.paired += 1
                assert event.peer.key == THEM.key.public
            if self.shown is not None:
                self.burnt.add(self.shown)
                self.shown = None

    @precondition(lambda self: self.window.state is Window.CLOSED)
    @rule()
    def open(self) -> None:
        self.shown = self.window.open(self.now)
        self.opened_at, self.failures = self.now, 0
        self.window.events()

    @rule(seconds=st.sampled_from([0.1, 1.0, ATTEMPT_S, WINDOW_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.window.poll(self.now)
        self.drain()
        assert self.window.wake_at is None or self.window.wake_at > self.now

    @rule(kind=st.sampled_from(["honest", "guess", "relay", "burnt", "replay"]), data=st.data())
    def begin(self, kind: str, data: st.DataObject) -> None:
        code = self.shown or Code(1, ("none",))
        if kind == "guess":
            code = Code(code.nameplate, ("guess",))
        if kind == "burnt" and self.burnt:
            code = data.draw(st.sampled_from(sorted(self.burnt, key=str)))
        worker = WorkerExchange(code, THEM, RELAY if kind == "relay" else SPKI, _random.randbytes)
        start: PairingMessage = worker.start()
        was_idle = self.window.state is Window.OPEN
        try:
            exchange = self.window.begin(self.now)
            assert was_idle
            if kind == "replay" and self.recorded:
                start = data.draw(st.sampled_from(self.recorded))
            answer = self.window.receive(exchange, start, self.now)
        except (PairingFailed, RemoteProtocolError):
            self.drain()
            return
        self.recorded.append(start)
        assert answer is not None
        self.honest[exchange] = worker, answer

    @precondition(lambda self: self.honest)
    @rule(data=st.data(), replay=st.booleans())
    def step(self, data: st.DataObject, replay: bool) -> None:
        exchange = data.draw(st.sampled_from(list(self.honest)))
        worker, answer = self.honest[exchange]
        before = self.paired
        try:
            assert answer is not None
            said = worker.receive(answer)
            assert said is not None
            message = data.draw(st.sampled_from(self.recorded)) if replay else said
            reply = self.window.receive(exchange, message, self.now)
            self.recorded.append(message)
            if reply is None:
                assert exchange.state is State.PROVEN and not replay
                assert worker._code not in self.burnt and worker._spki == SPKI
                assert self.now - self.opened_at < WINDOW_S
                worker.receive(self.window.stored(exchange, THEM.name))
                assert worker.state is State.PAIRED
        except EdgespecError:
            del self.honest[exchange]
            self.drain()
            assert self.paired == before
            return
        self.drain()
        if reply is None:
            assert self.paired == before + 1
            del self.honest[exchange]
        else:
            self.honest[exchange] = worker, reply

    @precondition(lambda self: self.honest)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        exchange = data.draw(st.sampled_from(list(self.honest)))
        del self.honest[exchange]
        self.window.abandon(exchange, Reason.ABANDONED)
        self.drain()

    @rule()
    def cancel(self) -> None:
        self.window.close()
        self.drain()

    @invariant()
    def a_code_is_shown_exactly_while_the_window_is_open(self) -> None:
        assert (self.shown is not None) == (self.window.state is not Window.CLOSED)

    @invariant()
    def five_failures_are_the_end(self) -> None:
        assert self.failures < MAX_FAILURES or self.window.state is Window.CLOSED

    @invariant()
    def accepted_is_never_an_answer_to_a_start(self) -> None:
        assert not any(isinstance(answer, Accepted) for _, answer in self.honest.values())


Walk.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestWalk = Walk.TestCase


def test_recorded_messages_are_immutable() -> None:
    """The walk replays them, so a machine that changed them would spoil it."""
    start = WorkerExchange(Code(1, ("a",)), THEM, SPKI, _random.randbytes).start()
    with pytest.raises(AttributeError):
        start.nameplate = 2  # type: ignore[misc]
    assert msgspec.structs.replace(start, nameplate=2).nameplate == 2
