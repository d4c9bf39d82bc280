"""The gateway under attack and its honest worker: real processes from any checkout, on cores of their own.

With two cores the gateway has the first to itself; worker, client and attackers share the second, the attackers below
the others' priority. So what a flood costs the gateway shows on its own core, and what the attacker's work costs its
neighbours is the same in the control phases, where it burns as much.
"""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from edgespec.core.errors import EdgespecError
from edgespec.lab.rig import Rig, RigError, cpu_time_s, machine_time_s
from edgespec.shared import models
from edgespec.shared.procstat import task_stat
from tools.attacks.aim import Aim

QUICK_S = 0.1
"""A `/healthz` of a gateway at rest takes some milliseconds."""
RECOVERY_S = 30.0
LINKED = "linked to gateway"
"""What a worker logs each time that it is linked."""
HOSTILE = "hostile"
"""The attacker's paired worker."""
SLOTS = 4
STREAMS = SLOTS - 1
"""Requests of the honest neighbour, where a flood's key may hold slots itself: as many as one key may run."""


@dataclass(slots=True)
class Scene:
    """Use as a context manager: leaving it ends every process that it started."""

    folder: Path
    checkout: Path
    """Where the gateway's and the worker's code is from."""
    workers: int = 1
    stage: Rig = field(init=False)
    attacker_key: str = ""

    def __enter__(self) -> Scene:
        draft = str(models.quantised())
        cores = sorted(os.sched_getaffinity(0))
        self.stage = Rig(
            self.folder, draft, draft, draft,
            gateway_options={
                "target.threads": 1, "target.slots": SLOTS, "local_draft.threads": 1,
                "api.client_options": ["offload", "ignore_eos"],  # what the operator allows by default
            },
            worker_options={"draft.threads": 1},
            cores=(cores[0], cores[1] if len(cores) > 1 else cores[0]), checkout=self.checkout,
        )  # fmt: skip
        self.stage.__enter__()
        try:
            self._set_up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stage.__exit__(kind, error, trace)

    def _set_up(self) -> None:
        self.stage.start_gateway()
        self.stage.create_key()
        made = self.stage.gateway_command("keys", "create", "--name", "attacker", "--offload", "--json")
        self.attacker_key = made["key"]
        for worker in (HOSTILE, *self.honest):
            self.stage.pair(worker)
        for worker in self.honest:
            self.stage.start_worker(worker)

    @property
    def honest(self) -> list[str]:
        """Names of the honest workers."""
        return ["worker", *(f"worker{i}" for i in range(2, self.workers + 1))]

    @property
    def other_cores(self) -> Sequence[int]:
        """For client and attackers: every core but the gateway's, where there is another one."""
        cores = sorted(os.sched_getaffinity(0))
        return cores[1:] or cores

    def aim(self) -> Aim:
        """What attackers receive."""
        port, model = int(self.stage.api.rsplit(":", 1)[1].split("/")[0]), self.where()["model"]
        config = str(self.folder / f"{HOSTILE}.toml")
        return Aim(port, self.stage.link_port, model, self.attacker_key, config, STREAMS)

    def where(self) -> dict[str, Any]:
        """What the measuring client receives."""
        ready = self.stage.ready
        return {"port": ready["api"]["port"], "model": ready["model"], "key": self.stage.key}

    # --- before, during and after a flood ---------------------------------------------------------------------------

    def make_ready(self) -> None:
        """Starts again what a former flood ended, waits until every honest worker is linked, and forgives the hostile.

        A former flood may have had it quarantined, and then the next one would not reach the gateway.
        """
        if not self.stage.runs("gateway"):
            self.stage.start_gateway()
        for worker in self.stage.gateway_command("workers", "list", "--json")["workers"]:
            if worker.get("standing") == "quarantined":
                self.stage.gateway_command("workers", "release", worker["id"], "--json")
        for worker in self.honest:
            if self.stage.runs(worker):
                self.stage.wait_linked(worker=worker)
            else:
                self.stage.start_worker(worker)

    def pause(self, verb: str) -> None:
        """`pause` or `resume` of the honest workers, so that another one is given the requests."""
        for worker in self.honest:
            self.stage.worker_command(verb, "--json", worker=worker)

    def pair_one_more(self, name: str) -> str:
        """Pairs another honest machine, as its owner would: `ok`, or what happened."""
        try:
            self.stage.pair(name)
        except (EdgespecError, OSError, ValueError, KeyError) as error:
            return f"{error}"[-200:]
        return "ok"

    def recover(self) -> float:
        """Seconds until `/healthz` is quick again, at most RECOVERY_S."""
        began = time.monotonic()
        while time.monotonic() - began < RECOVERY_S and self.stage.runs("gateway"):
            asked = time.monotonic()
            with suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.where()["port"], timeout=5)
                connection.request("GET", "/healthz", headers={"Connection": "close"})
                quick = connection.getresponse().status == http.client.OK and time.monotonic() - asked < QUICK_S
                connection.close()
                if quick:
                    return asked - began
            time.sleep(0.05)
        return time.monotonic() - began

    def links(self) -> int:
        """How often honest workers were linked so far."""
        return sum(self.stage.log(worker).count(LINKED) for worker in self.honest)

    def lost(self, links_before: int) -> int:
        """Workers that were linked again since then, or are gone now."""
        gone = sum(not self._linked(worker) for worker in self.honest)
        return max(self.links() - links_before, gone)

    def _linked(self, worker: str) -> bool:
        try:
            self.stage.wait_linked(5.0, worker=worker)
        except (RigError, OSError):
            return False
        return True

    def log_bytes(self) -> int:
        """Bytes that the gateway has logged."""
        return (self.folder / "gateway.log").stat().st_size

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds of the gateway's process, and of its event loop's thread alone; 0 once it has ended."""
        with suppress(OSError, KeyError):
            pid = self.stage.pid("gateway")
            return task_stat(Path(f"/proc/{pid}")).cpu_s, task_stat(Path(f"/proc/{pid}/task/{pid}")).cpu_s
        return 0.0, 0.0

    def others_s(self, pids: Sequence[int]) -> float:
        """CPU seconds so far of everything on this machine but the scene's processes and these."""
        ours = 0.0
        for pid in (*self.stage.pids(), os.getpid(), *pids):
            with suppress(OSError):  # one that has just ended
                ours += cpu_time_s([pid])
        return machine_time_s() - ours
