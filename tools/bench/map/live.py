"""A cell of the map over real sockets: gateway, proxy and workers in processes of their own, around engines that sleep.

Every time may be `scale` times as long, so that hosts that share two cores take a smaller part of it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from cloud_gateway.links.paired import PairedWorkers
from edgespec.lab.rig import Processes, module
from edgespec.shared.paired import PairedGateways
from edgespec.shared.server_keys import ServerKeyStore
from tools.bench.map.cells import Arm, tokens
from tools.bench.map.gateway import Load
from tools.bench.map.machine import Place

GROUPS = 4
"""Processes over which the workers are spread."""


def measured(arm: Arm, place: Place, scale: float, counts: tuple[int, int] | None = None) -> dict[str, float]:
    """Its figures as `cells.simulated` has them, in unscaled time, and what the hosts took. Raises RigError.

    `counts`: tokens of each client that pass before, and that count.
    """
    setting, workers = arm.setting(place, scale), place.clients if arm.workers else 0
    with tempfile.TemporaryDirectory() as name, Processes(Path(name), last=["gateway"]) as processes:
        folder = Path(name)
        setting.write(folder / "setting.json")
        gateway = ServerKeyStore(folder / "gateway")
        states = [folder / f"worker-{number}" for number in range(workers)]
        made = [ServerKeyStore(state) for state in states]
        for state, worker in zip(states, made, strict=True):
            PairedWorkers(gateway.folder).add(worker.identity().public, state.name)
        port = _started(processes, "gateway", "tools.bench.map.gateway", folder / "setting.json", folder / "gateway")
        if made:
            link = ("--to", f"127.0.0.1:{port['port']}", "--rtt-ms", setting.rtt_ms)
            address = f"wss://127.0.0.1:{_started(processes, 'proxy', 'edgespec.lab.wan', *link)}"
            spki = gateway.tls_identity().spki_hash
            for worker in made:
                PairedGateways(worker.folder).add(gateway.identity().public, spki, "map", address, 1)
            command = [*module("tools.sim.live.worker"), str(folder / "setting.json"), address]
            for number in range(GROUPS):  # threads of one process take turns
                if own := [str(state) for state in states[number::GROUPS]]:
                    processes.start(f"workers-{number}", [*command, *own], piped=True)
        skipped, counted = counts or tokens(place.clients)
        processes.say("gateway", msgspec.json.encode(Load(place.clients, skipped, counted, bool(made))))
        more = msgspec.json.decode(processes.line("gateway"), type=dict[str, float])
        outputs = [processes.stop(f"workers-{number}").splitlines() for number in range(GROUPS)]
    workers_cpu_s = sum(msgspec.json.decode(output[-1])["cpu_s"] for output in outputs if output)
    given = more["tokens"]
    return {
        "rate": given / more["seconds"] / place.clients * scale,
        "tokens_per_pass": given / more["passes"],
        "draft_passes": more["draft_passes"] / given,
        "rows": more["rows"] / given,
        "host_us": more["host_s"] / more["passes"] / place.clients * 1e6,
        "waited_share": more["waited_s"] / more["seconds"],
        "gateway_cpu_us": more["cpu_s"] / given * 1e6,
        "workers_cpu_s": workers_cpu_s,
        "late_us": more["late_us"],
    }


def _started(processes: Processes, name: str, path: str, *own: object) -> Any:
    processes.start(name, [*module(path), *map(str, own)], piped=True)
    return msgspec.json.decode(processes.line(name))
