"""Every machine that events from outside drive, and one case: thirty events for one of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from tools.fuzz import link_machines as link
from tools.fuzz import request_machines as requests

EVENTS = 30
"""Of one case; where a machine has ended before, another one of its kind begins."""
Machine = Callable[[random.Random], Iterator[str]]
"""Yields what came of each event; ends with the machine. Raises AssertionError, or what leaves the machine."""
MACHINES: Mapping[str, tuple[Machine, int]] = {
    "gateway's session": (link.gateway_session, 2),
    "worker's session": (link.worker_session, 2),
    "pairing window": (link.pairing_window, 60),
    "peer handshake": (link.peer_handshake, 2),
    "inflow": (link.inflow, 1),
    "TLS records": (link.records, 1),
    "request": (requests.request, 4),
    "queued answer": (requests.queued_answer, 2),
    "worker's request": (requests.worker_request, 2),
    "admission": (requests.admission, 1),
    "owner": (requests.owner, 1),
    "announcements": (requests.announcements, 1),
    "pairing sources": (requests.pairing_sources, 1),
    "API keys": (requests.api_keys, 1),
    "conduct": (requests.conduct, 1),
    "turns": (requests.turns, 1),
}
"""By name, with how many times fewer events each gets, since they take longer."""
_SHARES = list(itertools.accumulate(1 / cost for _, cost in MACHINES.values()))


def case(seed: str) -> Counter[str]:
    """What came of each event at one kind of machine. Raises what a machine lets through."""
    rng = random.Random(seed)
    (name,) = rng.choices(list(MACHINES), cum_weights=_SHARES)
    machine, _ = MACHINES[name]
    events = itertools.chain.from_iterable(machine(rng) for _ in itertools.repeat(None))
    return Counter(f"{name}: {what}" for what in itertools.islice(events, EVENTS))
