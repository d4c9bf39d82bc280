"""The attacker's and the client's processes, as the runner holds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tools.attacks.attacker import Orders
from tools.attacks.measure import Event

ROOT = Path(__file__).parents[2]
"""This checkout, whose code attackers run, whatever checkout the gateway is from."""
START_S = 60.0
"""Longest wait for a first line, on a machine that has other work."""


class Child:
    """A Python process of this checkout that reads JSON, prints lines, and ends when its input is closed."""

    def __init__(self, module: str, first_line: bytes) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, cwd=ROOT,
        )  # fmt: skip
        self.lines: list[str] = []
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(first_line.decode())
            self._process.stdin.flush()
        self._spoke = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._spoke.set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_first_line(self) -> None:
        """Until it is up."""
        self._spoke.wait(START_S)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Closes its input; kills it where that is not enough."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout_s)


class Attacker(Child):
    """Floods or keeps quiet from its start to `stop`."""

    def __init__(self, orders: Orders) -> None:
        super().__init__("tools.attacks.attacker", orders.line())
        self.wait_first_line()

    def result(self) -> dict[str, Any]:
        """After `stop`: what it counted, and the share of a core that it used; nothing where it was killed."""
        try:
            found: dict[str, Any] = json.loads(self.lines[-1])
        except (IndexError, ValueError):
            return {"count": {}, "cpu": 0.0}
        return found


class Client(Child):
    """Streams completions from its start to `stop`."""

    def __init__(self, where: Mapping[str, Any], cores: Sequence[int], seed: int) -> None:
        line = json.dumps({**where, "cores": list(cores), "seed": seed}).encode() + b"\n"
        super().__init__("tools.attacks.client", line)

    def events(self) -> list[Event]:
        """All that it saw so far."""
        found = []
        for line in list(self.lines):
            with suppress(ValueError):
                found.append(Event.parse(line))
        return found
