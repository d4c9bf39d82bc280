"""The arm `async` of `edgespec tune`: a gateway process with the configured models that runs its own worker (AMUSD).

Its target has some of this machine's cores and its worker the others, as `tune` would write them, and its completions
come through the chat API. Draft and target are loaded a second time for it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from cloud_gateway.core.requests.request import Speculation, Times, Usage
from cloud_gateway.process.config import SELF, GatewaySettings
from edgespec.lab.rig import Rig
from edgespec.lab.tune.advice import Cores
from edgespec.shared.procstat import task_stat
from edgespec.shared.settings import keys

DRAFT_SHARE = 4
"""The own worker gets the fourth part of the cores, one at least: a draft step is a small part of a pass."""


def divided(settings: GatewaySettings, available: Sequence[int]) -> Cores | None:
    """Cores of target and own worker: those configured, otherwise of those available; None if the draft cannot have
    a process of its own, or there are fewer than two."""
    draft = settings.local_draft
    if draft.model in ("", SELF):
        return None
    free = [core for core in available if core not in settings.daemon.cpu]
    own = [*draft.cpu] or free[-max(1, len(available) // DRAFT_SHARE) :]
    rest = [*settings.daemon.cpu] or [core for core in available if core not in own]
    return Cores(rest, own) if rest and own else None


class OwnProcess:
    """A gateway whose own worker is linked."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def complete(self, prompt: str, max_tokens: int) -> Usage:
        """The usage of a greedy completion. Raises RigError."""
        counts = self._rig.chat(prompt, max_tokens)["usage"]
        shown = counts["edgespec"]
        return Usage(
            completion_tokens=counts["completion_tokens"],
            rounds=shown["rounds"],
            drafted=shown["drafted"],
            accepted=shown["accepted"],
            by_worker=shown["by_worker"],
            times=Times(total_s=shown["timings_ms"]["total"] / 1000),
        )

    def cpu_s(self) -> float:
        """Processor seconds of gateway and worker so far. Raises RigError if the worker has ended."""
        pids = self._rig.pid("gateway"), self._rig.own_worker_pid()
        return sum(task_stat(Path(f"/proc/{pid}")).cpu_s for pid in pids)


@contextmanager
def running(settings: GatewaySettings, cores: Cores, asks: Speculation, max_tokens: int) -> Iterator[OwnProcess]:
    """The gateway until the block is left, with the policy of `asks`. Raises RigError with its last lines."""
    with tempfile.TemporaryDirectory(prefix="edgespec-tune-") as folder:
        place = Path(folder)
        asked = replace(settings, policy=asks.over(settings.policy))
        options = flat(asked) | changes(settings, cores, max_tokens, place / "state")
        with Rig(
            folder=place, target=settings.target.model, draft="", local_draft=None, gateway_options=options
        ) as rig:
            rig.start_gateway()
            rig.create_key()
            rig.wait_own_worker()
            yield OwnProcess(rig)


def changes(settings: GatewaySettings, cores: Cores, max_tokens: int, state: Path) -> dict[str, object]:
    """What this gateway has otherwise: its mode, its cores, nothing that others see, and no text kept."""
    threads = settings.target.threads, settings.local_draft.threads
    return {
        "local_draft.mode": "async-local", "local_draft.cpu": cores.draft, "daemon.cpu": cores.target,
        "target.threads": min(threads[0], len(cores.target)), "local_draft.threads": min(threads[1], len(cores.draft)),
        "api.prefix_cache": False, "traces.folder": "", "audit.keep": 0,
        "api.host": "127.0.0.1", "api.port": 0, "link.host": "127.0.0.1", "link.port": 0, "link.mdns": False,
        "metrics.port": 0, "daemon.state_dir": str(state),
        "api.max_tokens_limit": max(settings.api.max_tokens_limit, max_tokens),
    }  # fmt: skip


def flat(settings: GatewaySettings) -> dict[str, Any]:
    """Every key, dotted, with its value as TOML has it."""
    tables = msgspec.to_builtins(settings)
    return {key: tables[key.partition(".")[0]][key.partition(".")[2]] for key in keys(GatewaySettings)}
