"""A fault in the hook costs drafts, never the engine: an exception in vLLM's step would end the server."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from math import inf
from typing import Concatenate, ParamSpec

from edgespec_vllm.hook import Hook

log = logging.getLogger("vllm.edgespec")
"""Below vLLM's own logger, so that its lines are shown."""
MAX_FAILURES = 5
"""Exceptions since the hook was made, after which it is off."""
RETRY_S = 60.0
"""From then until it is made again; twice as long each further time."""
MAX_RETRIES = 5
"""The last one comes half an hour after the first failure: what failed until then fails by itself."""
P = ParamSpec("P")


class Guard:
    """Runs the hook's parts. After `MAX_FAILURES` exceptions it runs none of them, until it is time to try again."""

    def __init__(self, make: Callable[[], Hook], clock: Callable[[], float] = time.monotonic) -> None:
        """`make` makes the hook; if it fails there is none. `clock`: seconds."""
        self._make = make
        self._clock = clock
        self.hook: Hook | None = None
        self.failures = 0
        """Since the hook was made."""
        self.retries = 0
        self._retry_at = inf
        self._start()

    def __call__(self, part: Callable[Concatenate[Hook, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Runs one part, unless the hook is off. Never raises an Exception."""
        if self.hook is None:
            if self._clock() < self._retry_at:
                return
            self.retries += 1
            self._start()
            if self.hook is None:
                return
        try:
            part(self.hook, *args, **kwargs)
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    def _start(self) -> None:
        """Makes the hook. If that fails it is off for good: what it needs of vLLM does not change."""
        self._retry_at = inf
        self.failures = 0
        try:
            self.hook = self._make()
        except Exception as error:  # noqa: BLE001  whatever it is, vLLM runs without drafts
            log.warning("edgespec: vLLM runs without drafts from workers: %s: %s", type(error).__name__, error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        said = (self.failures, MAX_FAILURES, type(error).__name__, error)
        if self.failures < MAX_FAILURES:
            log.warning("edgespec: failure %d of %d in the hook, which costs drafts only: %s: %s", *said)
            return

        with contextlib.suppress(Exception):
            if self.hook is not None:
                self.hook.end()
        self.hook = None
        then = "until vLLM is started again"
        if self.retries < MAX_RETRIES:
            wait_s = RETRY_S * 2**self.retries
            self._retry_at = self._clock() + wait_s
            then = f"for {wait_s:.0f} s"
        log.warning("edgespec: failure %d of %d in the hook: %s: %s; no drafts from workers %s", *said, then)
