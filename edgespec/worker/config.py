"""The worker's configuration: every key of `configs/worker.toml`, where units and reasons stand beside each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from edgespec.core.protocol.messages import MAX_NODES
from edgespec.shared import settings
from edgespec.shared.fields import (
    Cores,
    Folder,
    GatewayAddress,
    LogLevel,
    MachineName,
    ModelPath,
    NetworkText,
    Threads,
    machine_name,
)
from edgespec.shared.settings import Section, override

__all__ = ["DaemonSection", "DraftSection", "GatewaySection", "WorkerSettings", "load", "override", "worker_name"]


class DraftSection(Section, frozen=True):
    """[draft]: the model, and Algorithm 2's parameters."""

    model: ModelPath = "auto:quantised"
    threads: Threads = 0
    context: Annotated[int, Meta(ge=256, le=1_048_576)] = 4096
    order: Literal["best-first", "algorithm2"] = "best-first"
    branching: Annotated[int, Meta(ge=0, le=MAX_NODES)] = 0
    theta: Annotated[float, Meta(ge=0, le=100)] = 0.5
    sequences: Annotated[int, Meta(ge=0, le=32)] = 0
    requests: Annotated[int, Meta(ge=1, le=256)] = 8
    prefill_batch: Annotated[int, Meta(ge=1, le=8192)] = 256
    prefix_cache: bool = True


class GatewaySection(Section, frozen=True):
    """[gateway]: where the gateway is."""

    address: GatewayAddress = ""
    discover: bool = True
    networks: tuple[NetworkText, ...] = ()


class DaemonSection(Section, frozen=True):
    """[daemon]: the process itself."""

    name: MachineName = ""
    state_dir: Folder = ""
    log_level: LogLevel = "info"
    cpu: Cores = ()


class WorkerSettings(Section, frozen=True):
    """All of worker.toml."""

    draft: DraftSection = DraftSection()
    gateway: GatewaySection = GatewaySection()
    daemon: DaemonSection = DaemonSection()


def worker_name(settings: WorkerSettings) -> str:
    """The name that the gateway's operator sees."""
    return machine_name(settings.daemon.name)


def load(path: Path | None = None) -> WorkerSettings:
    """As `settings.load_usual`. Raises ConfigError."""
    return settings.load_usual(path, "worker", WorkerSettings)
