"""Sets the stage of a live replay: gateway, proxy and worker, each a process of its own, and what they tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgespec.lab.rig import Processes, RigError, module, waited_s
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways, PairedWorkers
from tools.sim.live.gateway import Asked, Reported
from tools.sim.live.setting import Setting


class Stage:
    """One setting's processes. Use as a context manager: leaving it ends them."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        """`folder` takes keys, the setting and logs."""
        self.setting, self._folder = setting, folder
        self._processes = Processes(folder)

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
        self.end_worker()
        self._processes.stop("gateway", sig=None)  # it ends with its standard input
        self._processes.stop("proxy")

    def _start_all(self) -> None:
        """Pairing is skipped: each side's list gets the other's keys."""
        setting, state = self.setting, {name: self._folder / name for name in ("gateway", "worker")}
        gateway, worker = KeyStore(state["gateway"]), KeyStore(state["worker"])
        PairedWorkers(gateway.folder).add(worker.identity().public, "replay-worker")
        own = ["tools.sim.live.gateway", str(self._folder / "setting.json"), str(state["gateway"])]
        port = self._start("gateway", own)["port"]
        link = ["--rtt-ms", str(setting.rtt_ms), "--jitter-ms", str(setting.jitter_ms)]
        proxy = self._start("proxy", ["edgespec.lab.wan", "--to", f"127.0.0.1:{port}", *link])
        address = f"wss://127.0.0.1:{proxy}"
        spki = gateway.tls_identity().spki_hash
        PairedGateways(worker.folder).add(gateway.identity().public, spki, "replay", address, 1)
        own = ["tools.sim.live.worker", str(self._folder / "setting.json"), str(state["worker"]), address]
        self._start("worker", own, wait=False)

    def ask(self, seed: int, policy: str, *, worker: bool) -> Reported:
        """One answer. Raises RigError, also where its tokens are not the process's."""
        self._processes.say("gateway", msgspec.json.encode(Asked(seed, policy, worker)))
        reported = msgspec.json.decode(self._processes.line("gateway"), type=Reported)
        if not reported.right:
            raise RigError(f"Policy {policy} gave other tokens for answer {seed} than the target process says.")
        return reported

    def end_worker(self) -> dict[str, Any]:
        """Ends the worker; returns what it says of its steps, nothing where it does not."""
        output = self._processes.stop("worker").splitlines()
        return dict(msgspec.json.decode(output[-1])) if output else {}

    def waited_s(self) -> float:
        """How long the processes' threads have waited for a core so far."""
        return waited_s(self._processes.pids())

    def _start(self, name: str, own: Sequence[str], *, wait: bool = True) -> Any:
        self._processes.start(name, [*module(own[0]), *own[1:]], piped=True)
        return msgspec.json.decode(self._processes.line(name)) if wait else None
