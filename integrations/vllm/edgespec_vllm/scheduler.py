"""vLLM's scheduler with drafts from workers, and the drafter beside it that drafts nothing.

Both are made when vLLM asks for them (`__init__.py`), since this package must import without vLLM.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

from edgespec_vllm import cpu
from edgespec_vllm.guard import Guard
from edgespec_vllm.hook import Hook, make_hook

log = logging.getLogger("vllm.edgespec")
HOOKS: Mapping[str, tuple[str, ...]] = {
    "__init__": ("vllm_config", "kv_cache_config", "structured_output_manager"),
    "add_request": ("request",),
    "schedule": ("throttle_prefills",),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "update_draft_token_ids": ("draft_token_ids",),
    "_free_request": ("request", "delay_free_blocks"),
    "shutdown": (),
}
"""Methods of vLLM's `Scheduler` that the subclass overrides, with the parameters that it relies on (vLLM 0.32)."""


def missing(base: type) -> list[str]:
    """Which of HOOKS this scheduler does not have, or has with other parameters."""
    found = []
    for name, wanted in HOOKS.items():
        method = getattr(base, name, None)
        if not inspect.isfunction(method):
            found.append(name)
            continue
        parameters = list(inspect.signature(method).parameters.values())[1:]
        names = tuple(one.name for one in parameters[: len(wanted)])
        further = [one for one in parameters[len(wanted) :] if one.default is inspect.Parameter.empty]
        if names != wanted or (further and name != "__init__"):
            found.append(f"{name}({', '.join(wanted)})")

    return found


def make_scheduler(base: Any) -> Any:
    """The subclass of vLLM's `Scheduler`; `base` itself, and one line, if it is not as the subclass expects it."""
    if absent := missing(base):
        log.warning(
            "edgespec: this vLLM's scheduler lacks %s, so it runs without drafts from workers", ", ".join(absent)
        )
        return base

    class Scheduler(base):
        """Opens, drafts, commits and closes by request; all of it guarded."""

        def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(vllm_config, *args, **kwargs)
            grammar = self.structured_output_manager.validate_tokens
            self.edgespec = Guard(lambda: make_hook(vllm_config, sampled=cpu.sampled(), grammar=grammar))

        def add_request(self, request: Any) -> None:
            super().add_request(request)
            self.edgespec(Hook.opened, request)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.edgespec(Hook.draft, self.running)
            return super().schedule(*args, **kwargs)

        def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = super().update_from_output(scheduler_output, *args, **kwargs)
            self.edgespec(Hook.took, scheduler_output)
            self.edgespec(Hook.committed)
            return outputs

        def update_draft_token_ids(self, draft_token_ids: Any) -> None:
            """Ignored: near the context's end vLLM replaces drafts by zeros; ours are set in `schedule`."""

        def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            self.edgespec(Hook.closed, request)
            return super()._free_request(request, *args, **kwargs)

        def shutdown(self) -> None:
            self.edgespec(Hook.end)
            super().shutdown()

    return Scheduler


class Null:
    """The `custom_class` drafter: it turns on vLLM's verification of drafts, and proposes none itself."""

    def __init__(self, vllm_config: Any) -> None:
        """As vLLM makes it, in each process that runs the model."""

    def load_model(self, *_: Any, **__: Any) -> None:
        """Repairs what drafted rows need on a CPU (cpu.py), in this process."""
        cpu.sampled()

    def propose(self, sampled_token_ids: Any, *_: Any, **__: Any) -> list[list[int]]:
        """No draft for any row."""
        return [[] for _ in sampled_token_ids]
