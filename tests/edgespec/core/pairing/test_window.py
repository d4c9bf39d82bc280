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


def test_a_failed_attempt_burns_its_code_and_shows_another() -> None:
    w = window()
    code = w.open(0.0)
    with pytest.raises(PairingFailed):
        attempt(w, wrong(code), 1.0)
    shown, failed, again = w.events()
    assert isinstance(shown, Shown) and isinstance(again, Shown)
    assert failed == Failed(Reason.CODE, MAX_FAILURES - 1)
    assert again.code.nameplate != code.nameplate
    with pytest.raises(PairingFailed) as failure:
        attempt(w, code, 2.0)  # the right words, too late
    assert failure.value.reason is Reason.NAMEPLATE
    assert (w.events(), w.failures) == ([], 1)


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


def test_an_attempt_that_outlives_the_window_fails() -> None:
    w = window()
    exchange, worker, reply = parked(w, w.open(0.0), WINDOW_S - 1, "10.0.0.1")
    confirm = worker.receive(reply)
    assert confirm is not None
    with pytest.raises(PairingFailed) as failure:
        w.receive(exchange, confirm, WINDOW_S + 1)
    assert failure.value.reason is Reason.EXPIRED
    assert exchange.state is State.FAILED


def test_while_one_worker_is_paired_another_gets_busy_and_burns_nothing() -> None:
    w = window()
    code = w.open(0.0)
    exchange, worker, reply = parked(w, code, 0.0, "10.0.0.1")
    for source in ("10.0.0.1", "10.0.0.2"):
        with pytest.raises(PairingFailed) as failure:
            attempt(w, code, PARKED_S - 0.1, source)
        assert failure.value.reason is Reason.BUSY
    assert w.failures == 0
    confirm = worker.receive(reply)
    assert confirm is not None and w.receive(exchange, confirm, 2.0) is not None


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


def test_an_attempt_that_has_shown_the_code_does_not_have_to_go() -> None:
    w = window()
    code = w.open(0.0)
    exchange, worker, reply = parked(w, code, 0.0, "10.0.0.1")
    confirm = worker.receive(reply)
    assert confirm is not None and w.receive(exchange, confirm, 1.0) is not None
    with pytest.raises(PairingFailed) as failure:
        attempt(w, code, 1.0 + PARKED_S, "10.0.0.2")
    assert failure.value.reason is Reason.BUSY
    assert exchange.state is State.CONFIRMED


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


def test_a_source_that_has_to_wait_cannot_try_the_right_nameplate_either() -> None:
    w = window()
    code = w.open(0.0)
    for _ in range(2):
        with pytest.raises(PairingFailed):
            attempt(w, Code(code.nameplate + 1, code.words, code.check), 0.0)
    with pytest.raises(PairingFailed, match="too many attempts from this address") as failure:
        attempt(w, code, 0.5)
    assert failure.value.reason is Reason.DELAYED
    attempt(w, code, 1.0)


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


def test_a_worker_that_cannot_be_stored_is_not_paired() -> None:
    w = window()
    code = w.open(0.0)
    worker = WorkerExchange(code, THEM, SPKI, _random.randbytes)
    exchange = w.begin("10.0.0.1", code.nameplate, 0.0)
    message: PairingMessage | None = worker.start()
    while exchange.state is not State.PROVEN:
        assert message is not None
        answer = w.receive(exchange, message, 0.0)
        message = worker.receive(answer) if answer is not None else None
    w.abandon(exchange, Reason.STORAGE, 0.0)
    assert Failed(Reason.STORAGE, MAX_FAILURES - 1) in w.events()
    assert worker.state is State.ACCEPTED
    with pytest.raises(PairingFailed):
        w.stored(exchange, THEM.name)


def test_the_operator_may_close_the_window_at_any_time() -> None:
    w = window()
    w.close()
    assert w.events() == []
    code = w.open(0.0)
    exchange = w.begin("10.0.0.1", code.nameplate, 0.0)
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
