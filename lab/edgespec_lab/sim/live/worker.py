"""Workers of a live replay: `python -m edgespec_lab.sim.live.worker SETTING ADDRESS STATE...`, one of each STATE.

Services, daemons, links and keys are the product's, a thread drafts for each; only the draft model is not. After
SIGTERM it prints what their steps took, and the processor seconds.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.step_time import measured_curve
from edgespec.worker.config import DaemonSection, DraftSection, GatewaySection, WorkerSettings
from edgespec.worker.part import WorkerPart
from edgespec.worker.service import Service
from edgespec.worker.step_timer import StepTimer
from edgespec_lab.sim.live.engines import SleepingDrafter
from edgespec_lab.sim.live.setting import Setting, read

ORDERS = {"algorithm2": "algorithm2", "bestfirst": "best-first"}
"""The simulator's names of the worker's rules -> the configuration's."""


class AtStart(StepTimer):
    """Times the steps before the worker links, so that no answer is drafted by an assumed curve."""

    def __init__(self, drafter: Drafter) -> None:
        self._curve = measured_curve(drafter)

    def known(self) -> Mapping[int, float]:
        return self._curve


TIMED = WorkerPart("timed at start", timer=lambda settings, drafter: AtStart(drafter))


def settings_of(setting: Setting, state: Path, address: str) -> WorkerSettings:
    """The worker's configuration, as an admin would write it."""
    draft = {
        "order": ORDERS[setting.rule],
        "branching": setting.branching,
        "theta": setting.theta,
        "sequences": setting.sequences,
    }
    return WorkerSettings(
        draft=DraftSection(**draft),  # type: ignore[arg-type]
        gateway=GatewaySection(address=address),
        daemon=DaemonSection(name="replay-worker", state_dir=str(state), priority="normal"),
    )


async def main(setting: Setting, address: str, states: Sequence[Path]) -> None:
    """Drafts until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    drafters = [SleepingDrafter(setting) for _ in states]

    def made(state: Path, drafter: SleepingDrafter) -> Service:
        return Service(settings_of(setting, state, address), lambda _: cast("Drafter", drafter), [TIMED])

    with ThreadPoolExecutor(len(states)) as pool:  # each times its steps, which sleep
        services = list(pool.map(made, states, drafters))
    await asyncio.gather(*(service.run(stop) for service in services))
    stats = [service.daemon.stats for service in services]
    steps, host_s = (sum(getattr(one, name) for one in stats) for name in ("steps", "host_s"))
    found = {"cpu_s": time.process_time(), "steps": steps, "host_us_per_step": round(host_s / max(steps, 1) * 1e6, 1)}
    print(json.dumps(found | drafters[0].sleeper.summary()))


if __name__ == "__main__":
    asyncio.run(main(read(Path(sys.argv[1])), sys.argv[2], [Path(one) for one in sys.argv[3:]]))
