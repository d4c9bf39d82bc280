"""Random walks through the pairing window: honest and hostile peers from several sources, in any order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgespec.core.errors import EdgespecError, RemoteProtocolError
from edgespec.core.pairing.exchange import GatewayExchange, State, WorkerExchange
from edgespec.core.pairing.messages import Accepted, Code, PairingFailed, PairingMessage, Reason, Start
from edgespec.core.pairing.window import (
    ATTEMPT_S,
    MAX_FAILURES,
    PARKED_S,
    STEP_S,
    WINDOW_S,
    Failed,
    Paired,
    Shown,
    Window,
)
from tests.edgespec.core.pairing.test_window import SPKI, THEM, _random, window

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
        running, fails = self.window._exchange, self.failures
        stays = running is not None and (
            self.now - self.window._received_at < PARKED_S or running.state is not State.REPLIED
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
            assert running.state is State.FAILED
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
        shown, running = self.shown, self.window._exchange
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
                assert exchange.state is State.PROVEN and message is said
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
        unproven, before = exchange.state is State.REPLIED, (self.shown, self.failures)
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
