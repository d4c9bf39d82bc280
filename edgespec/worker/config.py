"""The worker's configuration: every key of `configs/worker.toml`, where units and reasons stand beside each."""

from __future__ import annotations

from pathlib import Path

from edgespec.core.drafting.settings import DraftSettings
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


class DraftSection(DraftSettings, frozen=True, kw_only=True):
    """[draft]: the model, and how it drafts."""

    model: ModelPath = "auto:quantised"
    threads: Threads = 0


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
