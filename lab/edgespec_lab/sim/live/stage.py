"""Gateway, proxy and workers of one setting, in processes of their own, around engines that sleep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from cloud_gateway.links.paired import PairedWorkers
from edgespec.shared.paired import PairedGateways
from edgespec.shared.server_keys import ServerKeyStore
from edgespec_lab.rig import Processes, module, waited_s
from edgespec_lab.sim.live.gateway import Load, Reported
from edgespec_lab.sim.live.setting import Setting

GROUPS = 4
"""Processes over which the workers are spread at most."""


class Stage:
    """The processes. Use as a context manager: leaving it ends them."""

    def __init__(self, setting: Setting, folder: Path, workers: int) -> None:
        """`folder` takes keys, the setting and logs."""
        self.setting = setting
        self._folder = folder
        self._states = [folder / f"worker-{number}" for number in range(workers)]
        self._groups = [f"workers-{number}" for number in range(min(GROUPS, workers))]
        self._processes = Processes(folder, last=["gateway", "proxy"])

    def __enter__(self) -> Stage:
        self._processes.__enter__()
        try:
            self._start_all()
        except BaseException:  # Ctrl-C too: `with` does not leave what was not entered, and what runs must end
            self._processes.__exit__()
            raise

        return self

    def __exit__(self, *_: object) -> None:
        self._processes.__exit__()

    def _start_all(self) -> None:
        """Pairing is skipped: each side's list gets the other's keys."""
        setting = self.setting
        written = str(self._folder / "setting.json")
        setting.write(self._folder / "setting.json")
        gateway = ServerKeyStore(self._folder / "gateway")
        workers = [ServerKeyStore(state) for state in self._states]
        for state, worker in zip(self._states, workers, strict=True):
            PairedWorkers(gateway.folder).add(worker.identity().public, state.name)
        port = self._started("gateway", "edgespec_lab.sim.live.gateway", written, str(self._folder / "gateway"))["port"]
        if not workers:
            return

        link = ("--rtt-ms", str(setting.rtt_ms), "--jitter-ms", str(setting.jitter_ms))
        address = f"wss://127.0.0.1:{self._started('proxy', 'edgespec_lab.wan', '--to', f'127.0.0.1:{port}', *link)}"
        spki = gateway.tls_identity().spki_hash
        for worker in workers:
            PairedGateways(worker.folder).add(gateway.identity().public, spki, "sleeps", address, 1)
        command = [*module("edgespec_lab.sim.live.worker"), written, address]
        for number, group in enumerate(self._groups):  # threads of one process take turns
            own = self._states[number :: len(self._groups)]
            self._processes.start(group, [*command, *map(str, own)], piped=True)

    def _started(self, name: str, path: str, *own: str) -> Any:
        self._processes.start(name, [*module(path), *own], piped=True)
        return msgspec.json.decode(self._processes.line(name))

    def ask(self, load: Load) -> Reported:
        """What a load takes. Raises RigError where the gateway ends, as for tokens that are not the process's."""
        self._processes.say("gateway", msgspec.json.encode(load))
        return msgspec.json.decode(self._processes.line("gateway"), type=Reported)

    def end_workers(self) -> Sequence[dict[str, Any]]:
        """Ends the workers; returns what each process prints of its steps, nothing for one that prints nothing."""
        outputs = [self._processes.stop(name).splitlines() for name in self._groups]
        return [dict(msgspec.json.decode(output[-1])) for output in outputs if output]

    def waited_s(self) -> float:
        """How long the processes' threads have waited for a core so far."""
        return waited_s(self._processes.pids())
