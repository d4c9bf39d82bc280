"""The worker's configuration: every key of `configs/worker.toml`, where units and reasons stand beside each."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from edgespec.core.drafting.settings import DraftSettings
from edgespec.core.presence import IDLE_S, OwnerPolicy
from edgespec.shared import settings
from edgespec.shared.fields import (
    Cores,
    Folder,
    GatewayAddress,
    GpuLayers,
    Hours,
    LogLevel,
    MachineName,
    ModelPath,
    NetworkText,
    Threads,
    hours,
    machine_name,
)
from edgespec.shared.settings import Section, override
from edgespec.worker.peers.config import PeersSection, RelaySection

__all__ = [
    "DaemonSection",
    "DraftSection",
    "GatewaySection",
    "OwnerSection",
    "WorkerSettings",
    "given",
    "load",
    "override",
    "owner_policy",
    "worker_name",
]


class DraftSection(DraftSettings, frozen=True, kw_only=True):
    """[draft]: the model, and how it drafts."""

    model: ModelPath = "auto:quantised"
    threads: Threads = 0
    n_gpu_layers: GpuLayers = 0


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
    priority: Literal["idle", "normal"] = "idle"


class OwnerSection(Section, frozen=True):
    """[owner]: when this machine's owner comes first. A limit of 0 turns its source off."""

    mode: Literal["when-idle", "always", "never"] = "when-idle"
    hours: tuple[Hours, ...] = ()
    idle_s: Annotated[float, Meta(ge=0, le=86_400)] = IDLE_S
    model: Literal["keep", "free"] = "keep"
    free_after_s: Annotated[float, Meta(ge=0, le=86_400)] = 600.0
    input: bool = True
    terminals: bool = True
    sessions: bool = True
    cpu_cores: Annotated[float, Meta(ge=0, le=4096)] = 0.5
    pressure_percent: Annotated[float, Meta(ge=0, le=100)] = 20.0
    gpu_percent: Annotated[float, Meta(ge=0, le=100)] = 10.0
    battery: bool = True
    metered: bool = True


class WorkerSettings(Section, frozen=True):
    """All of worker.toml."""

    draft: DraftSection = DraftSection()
    gateway: GatewaySection = GatewaySection()
    daemon: DaemonSection = DaemonSection()
    owner: OwnerSection = OwnerSection()
    peers: PeersSection = PeersSection()
    relay: RelaySection = RelaySection()


def owner_policy(owner: OwnerSection) -> OwnerPolicy:
    """The policy that `[owner]` states."""
    limits = {
        "input": owner.input,
        "terminals": owner.terminals,
        "sessions": owner.sessions,
        "cpu": owner.cpu_cores,
        "pressure": owner.pressure_percent,
        "gpu": owner.gpu_percent,
        "battery": owner.battery,
        "metered": owner.metered,
    }
    used = {name: float(limit) for name, limit in limits.items() if limit}
    free_after_s = owner.free_after_s if owner.model == "free" else math.inf
    return OwnerPolicy(owner.mode, tuple(map(hours, owner.hours)), used, owner.idle_s, free_after_s)


def worker_name(settings: WorkerSettings) -> str:
    """The name that the gateway's operator sees."""
    return machine_name(settings.daemon.name)


def load(path: Path | None = None) -> WorkerSettings:
    """As `settings.load_usual`. Raises ConfigError."""
    return settings.load_usual(path, "worker", WorkerSettings)


def given(args: argparse.Namespace) -> WorkerSettings:
    """The configuration file of a command line with its `--set`, checked together. Raises ConfigError."""
    return settings.assigned(load(args.config), args.set)
