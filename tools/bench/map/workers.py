"""The workers' process of a live cell: `python -m tools.bench.map.workers SETTING ADDRESS STATE...`, one of each STATE.

Services, daemons, links and keys are the product's, a thread drafts for each. They end with SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from edgespec.llamacpp.drafter import Drafter
from edgespec.worker.service import Service
from tools.sim.live.engines import SleepingDrafter
from tools.sim.live.setting import Setting, read
from tools.sim.live.worker import settings_of


async def main(setting: Setting, address: str, states: Sequence[Path]) -> None:
    """Drafts until SIGTERM; prints the processor seconds."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def made(state: Path) -> Service:
        return Service(settings_of(setting, state, address), lambda _: cast("Drafter", SleepingDrafter(setting)))

    with ThreadPoolExecutor(len(states)) as pool:  # each times its steps, which sleep
        services = list(pool.map(made, states))
    await asyncio.gather(*(service.run(stop) for service in services))
    steps = sum(service.daemon.stats.steps for service in services)
    print(json.dumps({"cpu_s": time.process_time(), "steps": steps}))


if __name__ == "__main__":
    asyncio.run(main(read(Path(sys.argv[1])), sys.argv[2], [Path(one) for one in sys.argv[3:]]))
