"""`--scheduler-cls live.timed.Scheduler`: edgespec's scheduler, whose guarded calls are timed.

It writes a line for each step to the file `$EDGESPEC_TIMES`: microseconds in `Hook.draft` and `Hook.committed`. The
drafts of a request with `withheld` in its `vllm_xargs` are not verified, which separates what they cost from the rest.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import edgespec_vllm
from edgespec_vllm.guard import Guard
from edgespec_vllm.hook import Hook


class TimedGuard:
    """The guard in whose place it stands."""

    def __init__(self, guard: Guard) -> None:
        self._guard, self._spent = guard, 0
        self._file = Path(os.environ["EDGESPEC_TIMES"]).open("a", buffering=1)  # noqa: SIM115  until the process ends

    def __call__(self, what: Any, *args: Any) -> None:
        """One guarded call."""
        began = time.perf_counter_ns()
        self._guard(what, *args)
        self._spent += time.perf_counter_ns() - began
        if what is Hook.draft:
            for request in args[0]:
                if (request.sampling_params.extra_args or {}).get("withheld"):
                    request.spec_token_ids = []
        if what is Hook.committed:
            self._file.write(f"{self._spent / 1e3:.1f}\n")
            self._spent = 0


class Scheduler(edgespec_vllm.Scheduler):  # type: ignore[misc]
    """As it is served, but for the clock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.edgespec = TimedGuard(self.edgespec)
