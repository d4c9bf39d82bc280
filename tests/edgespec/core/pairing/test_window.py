"""The gateway's pairing window: one code at a time, burnt by a failure, closed by five, by time or by success."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgespec.core.errors import EdgespecError, LocalProtocolError, PairingError, RemoteProtocolError
from edgespec.core.pairing.exchange import ExchangeState, GatewayExchange, Party, WorkerExchange
from edgespec.core.pairing.messages import (
    Accepted,
    Code,
    PairingFailed,
    PairingMessage,
    Reason,
    Refused,
    Start,
    check_number,
)
from edgespec.core.pairing.window import (
    ATTEMPT_S,
    FORGET_S,
    MAX_DELAY_S,
    MAX_FAILURES,
    MAX_SOURCES,
    PARKED_S,
    STEP_S,
    TRANSITIONS,
    WINDOW_S,
    AttemptFailed,
    Delays,
    Paired,
    PairingWindow,
    Shown,
    Window,
    WindowClosed,
)
from edgespec.core.protocol.signing import SigningKey

SPKI = hashlib.sha256(b"the gateway's TLS key").digest()
ME = Party(SigningKey(b"g" * 32), "gateway")
THEM = Party(SigningKey(b"w" * 32), "lab-7")
_random = random.Random(5)


def window() -> PairingWindow:
    return PairingWindow(ME, SPKI, _random.randbytes)


def attempt(w: PairingWindow, code: Code, now: float, source: str = "10.0.0.1") -> GatewayExchange:
    """A whole attempt of a worker with `code`; raises as the window does."""
    worker = WorkerExchange(code, THEM, SPKI, _random.randbytes)
    message: PairingMessage | None = worker.start()
    exchange = w.begin(source, code.nameplate, now)
    while message is not None:
        answer = w.receive(exchange, message, now)
        if answer is None:
            worker.receive(w.stored(exchange, THEM.name))
            break
        message = worker.receive(answer)
    return exchange


def wrong(code: Code) -> Code:
    return Code(code.nameplate, ("wrong", "words"), code.check)


def parked(
    w: PairingWindow, code: Code, now: float, source: str
) -> tuple[GatewayExchange, WorkerExchange, PairingMessage]:
    """An attempt that got its answer and sends nothing more."""
    worker = WorkerExchange(code, THEM, SPKI, _random.randbytes)
    exchange = w.begin(source, code.nameplate, now)
    reply = w.receive(exchange, worker.start(), now)
    assert reply is not None
    return exchange, worker, reply


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


@pytest.mark.claim("five-failures-close-the-window-until-the-operator-asks-again")
def test_five_failures_close_the_window_until_the_operator_asks_again() -> None:
    w = window()
    code = w.open(0.0)
    w.events()
    for left in range(MAX_FAILURES - 1, -1, -1):
        with pytest.raises(PairingFailed):
            attempt(w, wrong(code), 1.0, f"10.0.0.{left}")
        events = w.events()
        assert AttemptFailed(Reason.CODE, left) in events
        shown = [event.code for event in events if isinstance(event, Shown)]
        assert len(shown) == (left > 0) and code not in shown, "a failure burns the code and shows another"
        code = (shown or [code])[0]
    assert events[-1] == WindowClosed(Reason.BURNT)
    assert w.state is Window.CLOSED
    with pytest.raises(PairingFailed, match="five attempts failed") as failure:
        attempt(w, code, 2.0, "10.0.0.9")
    assert failure.value.reason is Reason.BURNT
    attempt(w, w.open(3.0), 4.0)
    assert w.failures == 0


@pytest.mark.claim("five-failures-close-the-window-until-the-operator-asks-again")
def test_the_window_lasts_120_seconds_whatever_happens_in_it() -> None:
    w = window()
    code = w.open(0.0)
    with pytest.raises(PairingFailed):
        attempt(w, wrong(code), WINDOW_S - 1)
    code = next(event.code for event in reversed(w.events()) if isinstance(event, Shown))
    with pytest.raises(PairingFailed, match="expired") as failure:
        attempt(w, code, WINDOW_S)
    assert failure.value.reason is Reason.EXPIRED
    assert w.events() == [WindowClosed(Reason.EXPIRED)]
    w.open(500.0)
    w.poll(500.0 + WINDOW_S - 0.001)
    assert w.state is Window.OPEN


def test_a_parked_attempt_has_to_go_when_another_comes() -> None:
    w = window()
    code = w.open(0.0)
    w.events()
    old, silent, reply = parked(w, code, 0.0, "10.0.0.1")
    attempt(w, code, PARKED_S, "10.0.0.2")
    assert [type(event) for event in w.events()] == [Paired]
    assert old.state is ExchangeState.FAILED
    late = silent.receive(reply)
    assert late is not None
    with pytest.raises(PairingFailed):
        w.receive(old, late, PARKED_S)


@pytest.mark.claim("wrong-nameplates-cost-nothing-but-make-their-source-wait")
def test_wrong_nameplates_cost_nothing_but_make_their_source_wait() -> None:
    w = window()
    code = w.open(0.0)
    w.events()
    tried = 0
    for tenth in range(1200):
        with pytest.raises(PairingFailed) as failure:
            w.begin("10.0.0.1", code.nameplate + 1, tenth / 10)
        assert failure.value.reason in (Reason.NAMEPLATE, Reason.DELAYED)
        tried += failure.value.reason is Reason.NAMEPLATE
    assert tried == 8  # at 0, 0.1, then after 1, 2, 4 ... s
    assert (w.events(), w.failures) == ([], 0)
    attempt(w, code, 119.9, "10.0.0.2")


def test_a_silent_attempt_ends_and_its_late_messages_reach_no_other() -> None:
    w = window()
    code = w.open(0.0)
    old, silent, reply = parked(w, code, 0.0, "10.0.0.1")
    assert w.wake_at == STEP_S
    w.poll(STEP_S)
    assert [type(event) for event in w.events()] == [Shown]
    new = w.begin("10.0.0.2", code.nameplate, STEP_S + 1)
    late = silent.receive(reply)
    assert late is not None
    with pytest.raises(PairingFailed) as failure:
        w.receive(old, late, STEP_S + 1)
    assert failure.value.reason is Reason.ABANDONED
    assert (new.state, w.failures) == (ExchangeState.NEW, 0)


def test_an_attempt_that_ends_after_its_proof_burns_the_code() -> None:
    w = window()
    exchange, worker, reply = parked(w, w.open(0.0), 0.0, "10.0.0.1")
    confirm = worker.receive(reply)
    assert confirm is not None
    w.receive(exchange, confirm, 0.0)
    w.abandon(exchange, Reason.ABANDONED, 0.0)
    assert AttemptFailed(Reason.ABANDONED, MAX_FAILURES - 1) in w.events()


def test_an_older_version_is_named_and_does_not_use_the_code_up() -> None:
    newer = Party(SigningKey(b"g" * 32), "gateway", version=4, min_version=4)
    w = PairingWindow(newer, SPKI, _random.randbytes)
    code = w.open(0.0)
    w.events()
    with pytest.raises(PairingFailed, match="the worker speaks version 2 and is the older one; this gateway speaks 4"):
        attempt(w, code, 1.0)
    failed = w.events()
    assert [(event.reason, event.left) for event in failed] == [(Reason.VERSION, MAX_FAILURES)]

    # The same code still pairs a worker that was updated.
    updated = WorkerExchange(code, Party(SigningKey(b"w" * 32), "lab-7", 4, 4), SPKI, _random.randbytes)
    exchange = w.begin("10.0.0.2", code.nameplate, 2.0)
    assert w.receive(exchange, updated.start(), 2.0) is not None


def test_a_worker_refused_for_its_version_says_that_it_is_the_older_one() -> None:
    worker = WorkerExchange(window().open(0.0), THEM, SPKI, _random.randbytes)
    worker.start()
    with pytest.raises(PairingFailed, match="this machine is the older one, it speaks version 2"):
        worker.receive(Refused(Reason.VERSION))


def test_a_code_identifies_its_gateway_in_every_version() -> None:
    words = ("acorn", "bridge", "candle")
    assert (
        check_number(4821, words, bytes(32))
        == int.from_bytes(
            hashlib.sha256(b"edgespec/2 pairing code\0" + bytes(32) + b"4821-acorn-bridge-candle").digest(), "big"
        )
        % 10_000
    )


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


SOURCES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"])


class Walk(RuleBasedStateMachine):
    """Correct, wrong, relayed, replayed and silent attempts in any order, with arbitrary delays."""

    def __init__(self) -> None:
        super().__init__()
        self.window = window()
        self.now = 0.0
        self.opened_at = -1e9
        self.shown: Code | None = None
        self.burnt: set[Code] = set()
        self.recorded: list[Start] = []
        self.honest: dict[GatewayExchange, tuple[WorkerExchange, PairingMessage | None]] = {}
        self.paired = self.failures = 0

    def drain(self) -> None:
        for event in self.window.events():
            if isinstance(event, Shown):
                assert event.code not in self.burnt
                self.shown = event.code
                continue
            if isinstance(event, AttemptFailed):
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
        self.opened_at = self.now
        self.failures = 0
        self.window.events()

    @rule(seconds=st.sampled_from([0.1, 1.0, PARKED_S, STEP_S, ATTEMPT_S, WINDOW_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.window.poll(self.now)
        self.drain()
        assert self.window.wake_at is None or self.window.wake_at > self.now

    @rule(kind=st.sampled_from(["honest", "wrong words", "relay", "burnt", "replay"]), source=SOURCES, data=st.data())
    def begin(self, kind: str, source: str, data: st.DataObject) -> None:
        code = self.shown or Code(1, ("none",), 7)
        if kind == "wrong words":
            code = Code(code.nameplate, ("wrong words",), 7)
        if kind == "burnt" and self.burnt:
            code = data.draw(st.sampled_from(sorted(self.burnt, key=str)))
        worker = WorkerExchange(code, THEM, bytes(32) if kind == "relay" else SPKI, _random.randbytes)
        start = worker.start()
        if kind == "replay" and self.recorded:
            start = data.draw(st.sampled_from(self.recorded))
        running = self.window._exchange
        fails = self.failures
        stays = running is not None and (
            self.now - self.window._received_at < PARKED_S or running.state is not ExchangeState.REPLIED
        )
        waits = self.window._delays.wait_s(source, self.now) > 0
        try:
            exchange = self.window.begin(source, start.nameplate, self.now)
        except PairingFailed as failure:
            assert failure.reason is not Reason.BUSY or stays
            self.drain()
            assert self.failures == fails  # a refused attempt burns and counts nothing
            return
        assert not stays and not waits and self.shown is not None and start.nameplate == self.shown.nameplate
        if running is not None:
            assert running.state is ExchangeState.FAILED
        self.drain()
        assert self.failures == fails
        try:
            answer = self.window.receive(exchange, start, self.now)
        except (PairingFailed, RemoteProtocolError):
            self.drain()
            return
        self.recorded.append(start)
        assert answer is not None
        self.honest[exchange] = worker, answer

    @precondition(lambda self: self.shown is not None)
    @rule(source=SOURCES, nameplate=st.integers(1, 9999))
    def try_a_nameplate(self, source: str, nameplate: int) -> None:
        assert self.shown is not None
        if nameplate == self.shown.nameplate:
            return
        shown = self.shown
        running = self.window._exchange
        with pytest.raises(PairingFailed) as failure:
            self.window.begin(source, nameplate, self.now)
        assert failure.value.reason in (Reason.NAMEPLATE, Reason.DELAYED)
        self.drain()
        assert (self.shown, self.window._exchange) == (shown, running)

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
            message = data.draw(st.sampled_from(self.recorded)) if replay and self.recorded else said
            reply = self.window.receive(exchange, message, self.now)
            if reply is None:
                assert exchange.state is ExchangeState.PROVEN and message is said
                assert worker._code not in self.burnt and worker._spki == SPKI
                assert self.now - self.opened_at < WINDOW_S
                worker.receive(self.window.stored(exchange, THEM.name))
                assert worker.state is ExchangeState.PAIRED
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
        unproven = exchange.state is ExchangeState.REPLIED
        before = (self.shown, self.failures)
        self.window.abandon(exchange, Reason.ABANDONED, self.now)
        self.drain()
        assert not unproven or (self.shown, self.failures) == before

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
TestWalk = pytest.mark.claim("wrong-nameplates-neither-burn-the-code-nor-count")(Walk.TestCase)


@pytest.mark.claim("wrong-nameplates-cost-nothing-but-make-their-source-wait")
def test_the_delay_doubles_with_each_failure_and_is_forgotten() -> None:
    delays = Delays()
    waits = []
    for _ in range(10):
        delays.failed("a", 100.0)
        waits.append(delays.wait_s("a", 100.0))
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (delays.wait_s("a", 159.0), delays.wait_s("a", 160.0)) == (1.0, 0.0)
    assert delays.wait_s("b", 100.0) == 0.0
    delays.failed("a", 100.0 + FORGET_S)
    assert delays.wait_s("a", 100.0 + FORGET_S) == 0.0


def test_any_number_of_failures_is_a_number() -> None:
    delays = Delays()
    for _ in range(5000):
        delays.failed("a", 0.0)
    assert delays.wait_s("a", 0.0) == MAX_DELAY_S


def test_the_memory_of_failures_is_bounded_and_keeps_the_latest() -> None:
    delays = Delays()
    for number in range(3 * MAX_SOURCES):
        delays.failed("attacker", 0.0)
        delays.failed(str(number), 0.0)
    assert len(delays._failures) == MAX_SOURCES
    assert delays.wait_s("attacker", 0.0) == MAX_DELAY_S
