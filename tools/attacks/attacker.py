"""One attacking process: `python -m tools.attacks.attacker`, with orders in one line of JSON on standard input.

It floods, or does what the same party does in the control phases and burns as much CPU as the flood did, until
standard input is closed. Then it prints what it did, as JSON. It runs below the priority of client and worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tools.attacks.aim import Aim
from tools.attacks.floods import find

NICE = 5
SLICE_S = 0.01
"""Of the burning: so fine that it takes turns with others as a flood does."""
SET_UP_S = 20.0
"""Longest wait for a flood's first connection, where the gateway lets nothing in."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What one process is to do."""

    name: str
    floods: bool
    """Or else keep quiet and burn."""
    checkout: str
    """Whose protocol to speak: the gateway's."""
    burn: float
    """Share of one core to burn."""
    cores: Sequence[int]
    seconds: float
    """After which it ends by itself."""
    aim: dict[str, Any]

    def line(self) -> bytes:
        """As one line of JSON."""
        return json.dumps(asdict(self)).encode()


def main() -> int:
    """Reads the orders, runs, prints what it did."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    os.sched_setaffinity(0, orders.cores)
    os.nice(NICE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.path.insert(0, orders.checkout)  # for `edgespec`; `tools` is imported already, from the rig's own checkout
    flood = find(orders.name)
    count: Counter[str] = Counter()
    stop = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(stop,), daemon=True).start()
    threading.Thread(target=_burn, args=(orders.burn, stop), daemon=True).start()
    run = flood.run if orders.floods else flood.quiet
    asyncio.run(_until(stop, run(Aim(**orders.aim), count), count, orders.seconds))
    return 0


def _wait_for_the_end(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


async def _until(stop: threading.Event, work: Any, count: Counter[str], seconds: float) -> None:
    """Runs the flood; says `ready` with the first thing that it counts, and at the end what it did and used.

    Then it ends the process, whatever its thousands of tasks still wait for.
    """
    task = asyncio.ensure_future(work)
    began = time.monotonic()
    while not (count or task.done() or stop.is_set()) and time.monotonic() - began < SET_UP_S:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    print("ready", flush=True)
    began, used = time.monotonic(), time.process_time()
    while not stop.is_set() and time.monotonic() - began < seconds:  # noqa: ASYNC110 - another thread sets it
        await asyncio.sleep(0.02)
    share = (time.process_time() - used) / (time.monotonic() - began)
    if task.done() and (error := task.exception()) is not None:
        print(f"the attacker failed: {error!r}", file=sys.stderr)
    print(json.dumps({"count": dict(count), "cpu": share}), flush=True)
    os._exit(0)


def _burn(share: float, stop: threading.Event) -> None:
    """Uses this share of a core, as its own clock says; less where others take the core."""
    if share <= 0.005:
        return
    while not stop.is_set():
        began, used = time.monotonic(), time.thread_time()
        while time.thread_time() - used < share * SLICE_S:
            pass
        time.sleep(max(0.0, SLICE_S - (time.monotonic() - began)))


if __name__ == "__main__":
    sys.exit(main())
