"""Sets the stage of a live replay: gateway, proxy and worker, each a process of its own, and what they tell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgespec.core.errors import EdgespecError
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways, PairedWorkers
from tools.sim.live.gateway import Asked, Reported
from tools.sim.live.setting import Setting

END_S = 15.0


class ReplayError(EdgespecError):
    """A process of the replay failed; the text ends with what it wrote last."""


class Stage:
    """One setting's processes. Use as a context manager: leaving it ends them."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        """`folder` takes keys, the setting and logs."""
        self.setting, self._folder = setting, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

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
        self._end("gateway")
        self._end("proxy")

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
        """One answer. Raises ReplayError, also where its tokens are not the process's."""
        stdin = self._running["gateway"].stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(Asked(seed, policy, worker)) + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._failed("gateway") from None
        reported = msgspec.json.decode(self._line("gateway"), type=Reported)
        if not reported.right:
            raise ReplayError(f"Policy {policy} gave other tokens for answer {seed} than the target process says.")
        return reported

    def end_worker(self) -> dict[str, Any]:
        """Ends the worker; returns what it says of its steps, nothing where it does not."""
        output = self._end("worker").splitlines()
        return dict(msgspec.json.decode(output[-1])) if output else {}

    def waited_s(self) -> float:
        """How long the processes' threads have waited for a core so far (Linux schedstat, second figure)."""
        pids = [process.pid for process in self._running.values()]
        paths = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return sum(int(path.read_text().split()[1]) for path in paths) / 1e9

    def _start(self, name: str, module: Sequence[str], *, wait: bool = True) -> Any:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", *module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        return msgspec.json.decode(self._line(name)) if wait else None

    def _line(self, name: str) -> bytes:
        stdout = self._running[name].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise self._failed(name)
        return line

    def _failed(self, name: str) -> ReplayError:
        """A gateway that gave up waiting is not to blame where another process had ended before."""
        ended = [other for other, process in self._running.items() if other != name and process.poll() is not None]
        name = next(iter(ended), name)
        last = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-3:]
        return ReplayError(f"The {name} of the replay ended early. It wrote: {' / '.join(last) or 'nothing'}")

    def _end(self, name: str) -> str:
        process = self._running.pop(name, None)
        if process is None:
            return ""
        if name != "gateway":  # which ends with its standard input
            process.send_signal(signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        return output.decode(errors="replace")
