"""A thousand workers after a restart, computed: the real `Redial`, the link port's admission, one core."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field

from cloud_gateway.links.port import link_admission
from edgespec.core.admission import Admission, Admitted
from edgespec.core.protocol.redial import Redial

HANDSHAKE_S = 0.004
"""Processor time of one handshake in the gateway: TLS, four signatures, the lists of workers."""
ROUND_TRIPS_S = 0.2
"""Of TCP, TLS, WebSocket and the protocol's handshake, at 50 ms."""


@dataclass
class Herd:
    """Workers that were linked for an hour, and whose gateway stops at 0 and listens again after `down_s`."""

    workers: int
    down_s: float
    seed: int
    back_s: list[float] = field(default_factory=list)
    """When each was linked again, in seconds after the port listens."""
    _dials: Counter[int] = field(default_factory=Counter)

    def run(self) -> None:
        """Until all are linked again."""
        admission = Admission(link_admission(2 * self.workers))
        redials = [Redial(random.Random(f"{self.seed} {worker}").uniform) for worker in range(self.workers)]
        agenda: list[tuple[float, int, int | None]] = []  # when, who, ticket of a handshake that ends then
        busy_until = self.down_s
        for worker, redial in enumerate(redials):
            redial.ended(3600.0)
            redial.restarts(0.0, 3600.0)
            heapq.heappush(agenda, (redial.wait_s(0.0), worker, None))
        while agenda:
            now, worker, ticket = heapq.heappop(agenda)
            if ticket is not None and admission.prove(ticket):
                self.back_s.append(now - self.down_s)
                continue
            if ticket is None and now >= self.down_s:
                self._dials[int(now)] += 1
                admitted = admission.arrive(f"10.{worker >> 8}.{worker & 255}.1", now)
                if isinstance(admitted, Admitted):
                    busy_until = max(busy_until, now) + HANDSHAKE_S
                    heapq.heappush(agenda, (busy_until + ROUND_TRIPS_S, worker, admitted.ticket))
                    continue
            heapq.heappush(agenda, (now + redials[worker].wait_s(now), worker, None))

    def quantile(self, share: float) -> float:
        """Seconds within which this share of the workers is linked again."""
        return sorted(self.back_s)[max(math.ceil(share * len(self.back_s)) - 1, 0)]

    @property
    def most_in_a_second(self) -> int:
        """Most attempts at the open port in one second."""
        return max(self._dials.values())
