"""The worker's process of a live replay: `python -m tools.sim.live.worker SETTING STATE ADDRESS`.

Service, daemon, link and keys are the product's; only the draft model is not. After SIGTERM it prints what its steps
took.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import cast

from edgespec.llamacpp.drafter import Drafter
from edgespec.worker import start
from edgespec.worker.config import DaemonSection, DraftSection, GatewaySection, OwnerSection, WorkerSettings
from edgespec.worker.service import Service
from tools.sim.live.engines import SleepingDrafter
from tools.sim.live.setting import Setting, read

ORDERS = {"algorithm2": "algorithm2", "bestfirst": "best-first"}
"""The simulator's names of the worker's rules -> the configuration's."""


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
        gateway=GatewaySection(address=address, discover=False),
        daemon=DaemonSection(name="replay-worker", state_dir=str(state), priority="normal"),
        owner=OwnerSection(mode="always"),
    )


def main(setting: Setting, state: Path, address: str) -> None:
    drafter = SleepingDrafter(setting)
    settings = settings_of(setting, state, address)
    service = Service(settings, lambda _: cast("Drafter", drafter))
    asyncio.run(start.run(settings, make=lambda *_: service))
    given = service.daemon.stats
    host_us = given.host_s / max(given.steps, 1) * 1e6
    print(json.dumps({"steps": given.steps, "host_us_per_step": round(host_us, 1), **drafter.sleeper.summary()}))


if __name__ == "__main__":
    main(read(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])
