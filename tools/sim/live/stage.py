"""Sets the stage of a live replay: gateway, proxy and workers, each a process of its own, and what they print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from cloud_gateway.links.paired import PairedWorkers
from edgespec.lab.rig import Processes, RigError, module, waited_s
from edgespec.shared.paired import PairedGateways
from edgespec.shared.server_keys import ServerKeyStore
from tools.sim.live.gateway import Asked, Reported
from tools.sim.live.setting import Setting


class Stage:
    """One setting's processes. Use as a context manager: leaving it ends them."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        """`folder` takes keys, the setting and logs."""
        self.setting, self._folder = setting, folder
        self._processes = Processes(folder)
        self._workers = [f"worker-{number}" for number in range(1, setting.workers + 1)]

    def __enter__(self) -> Stage:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.setting.write(self._folder / "setting.json")
        try:
            self._start_all()
        except BaseException:  # Ctrl-C too: `with` does not leave what was not entered, and what runs must end
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end_workers()
        self._processes.stop("gateway", sig=None)  # it ends with its standard input
        self._processes.stop("proxy")

    def _start_all(self) -> None:
        """Pairing is skipped: each side's list gets the other's keys."""
        setting, written = self.setting, str(self._folder / "setting.json")
        gateway, *workers = (ServerKeyStore(self._folder / name) for name in ("gateway", *self._workers))
        for name, worker in zip(self._workers, workers, strict=True):
            PairedWorkers(gateway.folder).add(worker.identity().public, name)
        port = self._start("gateway", ["tools.sim.live.gateway", written, str(self._folder / "gateway")])["port"]
        link = ["--rtt-ms", str(setting.rtt_ms), "--jitter-ms", str(setting.jitter_ms)]
        proxy = self._start("proxy", ["edgespec.lab.wan", "--to", f"127.0.0.1:{port}", *link])
        address = f"wss://127.0.0.1:{proxy}"
        spki = gateway.tls_identity().spki_hash
        for name, worker in zip(self._workers, workers, strict=True):
            PairedGateways(worker.folder).add(gateway.identity().public, spki, "replay", address, 1)
            self._start(name, ["tools.sim.live.worker", written, str(self._folder / name), address], wait=False)

    def ask(self, seed: int, policy: str, *, worker: bool) -> Reported:
        """One answer. Raises RigError, also where its tokens are not the process's."""
        self._processes.say("gateway", msgspec.json.encode(Asked(seed, policy, worker)))
        reported = msgspec.json.decode(self._processes.line("gateway"), type=Reported)
        if not reported.right:
            raise RigError(f"Policy {policy} gave other tokens for answer {seed} than the target process says.")
        return reported

    def end_workers(self) -> list[dict[str, Any]]:
        """Ends the workers; returns what each prints of its steps, nothing for one that prints nothing."""
        outputs = [self._processes.stop(name).splitlines() for name in self._workers]
        return [dict(msgspec.json.decode(output[-1])) for output in outputs if output]

    def waited_s(self) -> float:
        """How long the processes' threads have waited for a core so far."""
        return waited_s(self._processes.pids())

    def _start(self, name: str, own: Sequence[str], *, wait: bool = True) -> Any:
        self._processes.start(name, [*module(own[0]), *own[1:]], piped=True)
        return msgspec.json.decode(self._processes.line(name)) if wait else None
