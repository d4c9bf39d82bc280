"""The worker's configuration: every key of `configs/worker.toml`, where units and reasons stand beside each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from edgespec.core.drafting.settings import PREFILL_BATCH, DraftSettings
from edgespec.shared import settings
from edgespec.shared.fields import (
    Cores,
    Folder,
    GatewayAddress,
    GpuLayers,
    LogLevel,
    MachineName,
    ModelPath,
    Threads,
    machine_name,
)
from edgespec.shared.part import Part, Settings, composed
from edgespec.shared.settings import Removed, Section


class DraftSection(DraftSettings, frozen=True, kw_only=True):
    model: ModelPath = "auto:quantised"
    threads: Threads = 0
    n_gpu_layers: GpuLayers = 0


class GatewaySection(Section, frozen=True):
    address: GatewayAddress = ""


class DaemonSection(Section, frozen=True):
    name: MachineName = ""
    state_dir: Folder = ""
    log_level: LogLevel = "info"
    cpu: Cores = ()
    priority: Literal["idle", "normal"] = "idle"


REMOVED: Mapping[str, Removed] = {
    "draft.branching": Removed("the rule that `draft.order` names has its own.", (0, 2)),
    "draft.theta": Removed("Algorithm 2 uses 0.5 nats.", (0.5, 2.0)),
    "draft.sequences": Removed("the worker measures how many leaves a step is best with.", (0, 4)),
    "draft.prefill_batch": Removed(
        f"a batch of a prompt has at most {PREFILL_BATCH} tokens, and takes a tenth of a second.",
        (256,),
    ),
    "draft.prefix_cache": Removed("the gateway decides it with `api.prefix_cache`.", (True,)),
}
"""Keys of earlier versions, each with what holds instead."""


class WorkerSettings(Settings, frozen=True):
    """The tables of the core; `schema` adds those of the parts."""

    removed: ClassVar[Mapping[str, Removed]] = REMOVED
    draft: DraftSection = DraftSection()
    gateway: GatewaySection = GatewaySection()
    daemon: DaemonSection = DaemonSection()


def worker_name(settings: WorkerSettings) -> str:
    """The name that the gateway's operator sees."""
    return machine_name(settings.daemon.name)


def schema(parts: Sequence[Part]) -> type[WorkerSettings]:
    """The settings of a worker with these parts."""
    return composed(WorkerSettings, parts)


def load(path: Path | None = None, parts: Sequence[Part] = ()) -> WorkerSettings:
    """`settings.load_usual` for a worker with these parts. Raises ConfigError."""
    return settings.load_usual(path, "worker", schema(parts))


def given(args: argparse.Namespace) -> WorkerSettings:
    """The configuration file of a command line with its `--set`, checked together. Raises ConfigError."""
    return settings.assigned(load(args.config, args.parts), args.set)
