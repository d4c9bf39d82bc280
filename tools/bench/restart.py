"""How soon workers are linked again after a restart of their gateway: `python -m tools.bench.restart`.

A real gateway over the demo's models gets SIGTERM and is started again on the same port. Links without a model behind
them, each with its own key and `keep_linked`, stand in for workers. The seconds count from the moment at which the link
port listens again. What a thousand workers do is computed by the same `Redial`, against the admission of the link port
and one core for their handshakes. Prints one line of JSON for each.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import logging
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.port import link_admission
from edgespec.core.admission import Admission, Admitted
from edgespec.core.protocol.handshake import Pin, WorkerIdentity
from edgespec.core.protocol.messages import Piece, ToWorker
from edgespec.core.protocol.redial import MIN_LINKED_S, Redial
from edgespec.core.protocol.signing import SigningKey
from edgespec.lab.rig.processes import Processes, free_port, module
from edgespec.shared import models
from edgespec.shared.address import Address
from edgespec.shared.keystore import KeyStore
from edgespec.shared.vocabfiles import gguf_vocabulary
from edgespec.worker.link import Link, keep_linked

HANDSHAKE_S = 0.004
"""Processor time of one handshake in the gateway: TLS, four signatures, the lists of workers."""
ROUND_TRIPS_S = 0.2
"""Of TCP, TLS, WebSocket and the protocol's handshake, at 50 ms."""
READY_S = 300.0


@dataclass
class Herd:
    """Workers that were linked for an hour, and whose gateway stops at 0 and listens again after `down_s`."""

    workers: int
    down_s: float
    seed: int
    short: bool = True
    """Whether a restart is treated otherwise than other ends of a link."""
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
            if self.short:
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
        return quantile(self.back_s, share)

    @property
    def most_in_a_second(self) -> int:
        """Most attempts at the open port in one second."""
        return max(self._dials.values())


class LinkOnly:
    """A handler of links that drafts nothing, and notes when the link is up."""

    def __init__(self) -> None:
        self.up_at = -math.inf
        self.is_up = False

    def on_up(self, link: Link) -> None:
        self.up_at, self.is_up = time.monotonic(), True

    def on_message(self, message: ToWorker) -> None: ...

    def on_piece(self, piece: Piece) -> None: ...

    def on_round_trip(self, rtt_s: float) -> None: ...

    def on_writable(self) -> None: ...

    def on_down(self, why: str) -> None:
        self.is_up = False


async def measure(folder: Path, workers: int, restarts: int) -> list[float]:
    """Seconds until each worker is linked again, of all restarts."""
    port, ready = free_port(), folder / "ready.json"
    store, model = KeyStore(folder / "state"), models.quantised()
    identity, tls = store.identity(), store.tls_identity()
    paired, vocabulary = PairedWorkers(store.folder), gguf_vocabulary(model)
    options = {
        "daemon.state_dir": folder / "state", "target.model": model, "target.threads": 1, "local_draft.model": "",
        "api.port": 0, "metrics.port": 0, "link.port": port, "link.host": "127.0.0.1", "link.mdns": "false",
    }  # fmt: skip
    command = [*module("cloud_gateway"), "serve", "--ready-file", str(ready)]
    command += [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    pin, found = Pin(identity.public, tls.spki_hash), list[float]()

    async def where() -> Sequence[Address]:
        return [Address("127.0.0.1", port)]

    handlers, tasks = [LinkOnly() for _ in range(workers)], list[asyncio.Task[None]]()
    with Processes(folder) as processes:
        processes.start("gateway", command)
        await asyncio.to_thread(processes.wait_for, "gateway", ready.exists, READY_S)
        for number, handler in enumerate(handlers):
            key = SigningKey(random.randbytes(32))
            paired.add(key.public, f"worker-{number}", 1, None)
            me = WorkerIdentity(key, f"worker-{number}", vocabulary.digest, b"m" * 32, len(vocabulary.entries), 1)
            tasks.append(asyncio.create_task(keep_linked(where, me, pin, handler, rng=random.Random())))
        for _ in range(restarts):
            await until(lambda: all(one.is_up for one in handlers))
            await asyncio.sleep(MIN_LINKED_S + 1)
            await asyncio.to_thread(processes.stop, "gateway")
            processes.start("gateway", command)
            await until(lambda: listens(port))
            listening_at = time.monotonic()
            await until(lambda: all(one.is_up for one in handlers))
            found += [one.up_at - listening_at for one in handlers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def listens(port: int) -> bool:
    """Whether a process listens there, without connecting to it."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in lines)


async def until(done: object) -> None:
    assert callable(done)
    deadline = time.monotonic() + READY_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("the workers were not linked in time")
        await asyncio.sleep(0.02)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.restart", description=__doc__)
    parser.add_argument("--workers", type=int, default=24, help="links to the real gateway")
    parser.add_argument("--restarts", type=int, default=3, help="of the real gateway; 0 for the model only")
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    if options.restarts:
        with tempfile.TemporaryDirectory(prefix="es-") as folder:
            found = asyncio.run(measure(Path(folder), options.workers, options.restarts))
        report("real", options.workers, found, restarts=options.restarts)
    for down_s, short in product((3.0, 20.0, 100.0), (True, False)):
        herd = Herd(1000, down_s, seed=1, short=short)
        herd.run()
        most = herd.most_in_a_second
        report("model" if short else "back-off only", 1000, herd.back_s, down_s=down_s, most_dials_in_a_second=most)


def report(kind: str, workers: int, back_s: Sequence[float], **more: float) -> None:
    times = {name: round(quantile(back_s, share), 2) for name, share in (("p50_s", 0.5), ("p90_s", 0.9), ("max_s", 1))}
    print(json.dumps({"kind": kind, "workers": workers, **more, **times}), flush=True)


if __name__ == "__main__":
    main()
