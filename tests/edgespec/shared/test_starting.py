"""The start of a daemon: its steps are logged and can be asked for, and a signal ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from itertools import count

import pytest

from edgespec.shared import starting
from edgespec.shared.starting import Starting, Stopped, on_stop_signals
from tests.support.until import until

HEAVY = ("aiohttp", "llama_cpp", "numpy", "torch", "transformers")


@pytest.mark.parametrize(
    "modules", ["edgespec.__main__, edgespec.worker.start", "cloud_gateway.__main__, cloud_gateway.process.commands"]
)
def test_the_first_line_waits_for_no_large_library(modules: str) -> None:
    """Modules that the commands import before they create `Starting`, which logs the first line."""
    script = f"import sys, {modules}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_status_names_the_step_and_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = count(100.0)
    now = Starting("edgespec 1", lambda: next(clock))
    now("loading the draft model")  # began at 101, logged at 102
    assert now.status() == {"state": "starting", "doing": "loading the draft model", "doing_s": 2.0}
    assert caplog.messages == ["edgespec 1 starts", "starting, 2.0 s: loading the draft model"]


async def test_a_step_that_takes_long_is_logged_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(starting, "REMIND_S", 0.01)
    now, go = Starting("edgespec 1"), threading.Event()
    now("loading")
    running = asyncio.ensure_future(now.finished(lambda: go.wait(60), asyncio.Event()))
    await until(lambda: any("still loading" in line for line in caplog.messages))
    go.set()
    assert await running is True


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])  # under `nohup` SIGHUP is ignored
async def test_a_signal_does_not_wait_for_the_loading_to_end(sig: signal.Signals) -> None:
    stop, go = asyncio.Event(), threading.Event()
    on_stop_signals(lambda sig: stop.set())
    running = asyncio.ensure_future(Starting("edgespec 1").finished(lambda: go.wait(60), stop))
    os.kill(os.getpid(), sig)
    with pytest.raises(Stopped):
        await asyncio.wait_for(running, 30)
    go.set()


async def test_what_loading_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await Starting("edgespec 1").finished(lambda: 1 // 0, asyncio.Event())


@pytest.mark.parametrize(("handler", "expected"), [(signal.SIG_IGN, set()), (signal.SIG_DFL, {signal.SIGHUP})])
async def test_sighup_stops_unless_nohup_ignores_it(handler: signal.Handlers, expected: set[signal.Signals]) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    try:
        seen: set[signal.Signals] = set()
        on_stop_signals(seen.add)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: signal.SIGTERM in seen)
        assert seen == {signal.SIGTERM} | expected
    finally:
        signal.signal(signal.SIGHUP, before)
