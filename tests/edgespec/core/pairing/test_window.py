"""The gateway's pairing window: one code at a time, burnt by any failure, closed by five, by time or by success."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

import pytest

from edgespec.core.errors import LocalProtocolError, PairingError
from edgespec.core.pairing.exchange import GatewayExchange, Party, State, WorkerExchange
from edgespec.core.pairing.messages import Code, PairingFailed, PairingMessage, Reason
from edgespec.core.pairing.window import (
    MAX_FAILURES,
    PARKED_S,
    STEP_S,
    TRANSITIONS,
    WINDOW_S,
    Closed,
    Failed,
    Paired,
    PairingWindow,
    Shown,
    Window,
)
from edgespec.core.protocol.signing import SigningKey

SPKI = hashlib.sha256(b"the gateway's TLS key").digest()
ME = Party(SigningKey(b"g" * 32), "gateway")
THEM = Party(SigningKey(b"w" * 32), "lab-7")
_random = random.Random(5)


def next_code(entropy: Callable[[int], bytes], spki_hash: bytes, avoid: int) -> Code:
    return Code(avoid % 99 + 1, (entropy(4).hex(), "acorn"), 7)


def window() -> PairingWindow:
    return PairingWindow(ME, SPKI, next_code, _random.randbytes)


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
        assert Failed(Reason.CODE, left) in events
        code = next((event.code for event in events if isinstance(event, Shown)), code)
    assert events[-1] == Closed(Reason.BURNT)
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
    assert w.events() == [Closed(Reason.EXPIRED)]
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
    assert old.state is State.FAILED
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
    assert (new.state, w.failures) == (State.NEW, 0)


def test_an_attempt_that_ends_after_its_proof_burns_the_code() -> None:
    w = window()
    exchange, worker, reply = parked(w, w.open(0.0), 0.0, "10.0.0.1")
    confirm = worker.receive(reply)
    assert confirm is not None
    w.receive(exchange, confirm, 0.0)
    w.abandon(exchange, Reason.ABANDONED, 0.0)
    assert Failed(Reason.ABANDONED, MAX_FAILURES - 1) in w.events()


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
