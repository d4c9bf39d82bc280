"""A fault in the hook costs drafts, never the engine: an exception in vLLM's step would end the server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from edgespec_vllm.hook import Hook

log = logging.getLogger("vllm.edgespec")
"""Below vLLM's own logger, so that its lines are shown."""
MAX_FAILURES = 5
P = ParamSpec("P")


class Guard:
    """Runs the hook's parts. After `MAX_FAILURES` exceptions it runs none of them any more."""

    def __init__(self, make: Callable[[], Hook]) -> None:
        """`make` makes the hook; if it fails there is none."""
        self.hook: Hook | None = None
        self.failures = 0
        try:
            self.hook = make()
        except Exception as error:  # noqa: BLE001  whatever it is, vLLM runs without drafts
            self._off(error)

    def __call__(self, part: Callable[Concatenate[Hook, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Runs one part, unless the hook is off. Never raises an Exception."""
        if self.hook is None:
            return
        try:
            part(self.hook, *args, **kwargs)
        except Exception as error:  # noqa: BLE001
            self.failures += 1
            if self.failures >= MAX_FAILURES:
                self._off(error)

    def _off(self, error: Exception) -> None:
        """Ends the hook, with one line."""
        log.warning(
            "edgespec: vLLM goes on without drafts from workers, after %d failures in the hook; the last one: %s: %s",
            max(self.failures, 1), type(error).__name__, error,
        )  # fmt: skip
        with contextlib.suppress(Exception):
            if self.hook is not None:
                self.hook.end()
        self.hook = None
