"""Drafts of edgespec's workers in vLLM (README.md).

`vllm serve MODEL --scheduler-cls edgespec_vllm.Scheduler --speculative-config
'{"method": "custom_class", "model": "edgespec_vllm.Null", "num_speculative_tokens": 8}'`
"""

from __future__ import annotations

from functools import cache
from typing import Any

__version__ = "0.1.0"


@cache
def __getattr__(name: str) -> Any:
    """`Scheduler` and `Null`, which vLLM names as strings, are made when it looks them up."""
    if name not in ("Scheduler", "Null"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    from edgespec_vllm import scheduler

    if name == "Null":
        return scheduler.Null

    from vllm.v1.core.sched.scheduler import Scheduler

    return scheduler.make_scheduler(Scheduler)
