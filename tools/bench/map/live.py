"""A cell of the map over real sockets.

Every time may be `scale` times as long, so that hosts that share two cores take a smaller part of it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tools.bench.map.cells import Arm, tokens
from tools.bench.map.machine import Place
from tools.sim.live.gateway import Load
from tools.sim.live.stage import Stage


def measured(arm: Arm, place: Place, scale: float, counts: tuple[int, int] | None = None) -> dict[str, float]:
    """Its figures as `cells.simulated` has them, in unscaled time, and what the hosts took. Raises RigError.

    `counts`: tokens of each client that pass before, and that count.
    """
    skipped, counted = counts or tokens(place.clients)
    workers = place.clients if arm.workers else 0
    with tempfile.TemporaryDirectory() as name, Stage(arm.setting(place, scale), Path(name), workers) as stage:
        found = stage.ask(Load([*range(place.clients)], counted, skipped, bool(workers)))
        workers_cpu_s = sum(one["cpu_s"] for one in stage.end_workers())
    return {
        "rate": found.tokens / found.seconds / place.clients * scale,
        "tokens_per_pass": found.tokens / found.passes,
        "draft_passes": found.draft_passes / found.tokens,
        "rows": found.rows / found.tokens,
        "host_us": found.host_s / found.passes / place.clients * 1e6,
        "waited_share": found.waited_s / found.seconds,
        "gateway_cpu_us": found.cpu_s / found.tokens * 1e6,
        "workers_cpu_s": workers_cpu_s,
        "late_us": found.late_us,
    }
