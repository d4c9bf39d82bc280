"""The worker's configuration: every key of `configs/worker.toml`, where units and reasons stand beside each."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta

from edgespec.core.drafting.settings import PREFILL_BATCH, DraftSettings
from edgespec.core.presence import IDLE_S, OwnerPolicy
from edgespec.shared import settings
from edgespec.shared.address import DEFAULT_PEER_PORT
from edgespec.shared.fields import (
    Cores,
    Folder,
    GatewayAddress,
    GpuLayers,
    Host,
    Hours,
    LogLevel,
    MachineName,
    ModelPath,
    NetworkText,
    OptionalModelPath,
    Port,
    Threads,
    hours,
    machine_name,
)
from edgespec.shared.settings import Section

TUNNELS = 8
"""Peers relayed at once: a relay serves the machines of one room, of which few lack a way of their own."""
KIB_PER_S = 1024
"""KiB forwarded each second, for all peers and both directions together: some hundred workers' frames, and little
beside what a campus network carries."""


class PeersSection(Section, frozen=True):
    listen: bool = False
    host: Host = "0.0.0.0"  # noqa: S104  peers are on other machines
    port: Port = DEFAULT_PEER_PORT
    discover: bool = True


class RelaySection(Section, frozen=True):
    """[relay]: the way to the gateway through another daemon, and for one."""

    use: bool = True
    offer: bool = False


class DraftSection(DraftSettings, frozen=True, kw_only=True):
    model: ModelPath = "auto:quantised"
    target: OptionalModelPath = ""
    threads: Threads = 0
    n_gpu_layers: GpuLayers = 0


class GatewaySection(Section, frozen=True):
    address: GatewayAddress = ""
    discover: bool = True
    networks: tuple[NetworkText, ...] = ()


class DaemonSection(Section, frozen=True):
    name: MachineName = ""
    state_dir: Folder = ""
    log_level: LogLevel = "info"
    cpu: Cores = ()
    priority: Literal["idle", "normal"] = "idle"


Sign = Literal["input", "terminals", "sessions", "cpu", "pressure", "gpu", "battery", "metered"]
SIGN_LIMITS: Mapping[Sign, float] = {
    "input": 1,
    "terminals": 1,
    "sessions": 1,
    "cpu": 0.5,
    "pressure": 20.0,
    "gpu": 10.0,
    "battery": 1,
    "metered": 1,
}
"""Value of a source from which on the owner counts as present: half a core that other programs use, 20 % of the time in
which they wait for a processor, 10 % of a GPU; 1 where a source says yes or no. A desktop without its owner stays below
them, and a compile job or a game is above them at once (docs/worker.md)."""
FREE_AFTER_S = 600.0
"""Seconds aside before a model is freed: loading it again takes seconds, and a short return should not cost them."""


class OwnerSection(Section, frozen=True):
    mode: Literal["when-idle", "always", "never"] = "when-idle"
    hours: tuple[Hours, ...] = ()
    idle_s: Annotated[float, Meta(ge=0, le=86_400)] = IDLE_S
    model: Literal["keep", "free"] = "keep"
    signs: tuple[Sign, ...] = get_args(Sign)


_SIGNS = "list the signs that count in `owner.signs`; their limits are constants (docs/worker.md)."
REMOVED: Mapping[str, str] = {
    "draft.branching": "the rule that `draft.order` names has its own.",
    "draft.theta": "Algorithm 2 uses 0.5 nats.",
    "draft.sequences": "the worker measures at its start how many leaves a step is best with.",
    "draft.prefill_batch": f"a batch of a prompt has at most {PREFILL_BATCH} tokens, and takes a tenth of a second.",
    "draft.prefix_cache": "the gateway decides it with `api.prefix_cache`.",
    **dict.fromkeys(
        (
            "owner.input", "owner.terminals", "owner.sessions", "owner.cpu_cores", "owner.pressure_percent",
            "owner.gpu_percent", "owner.battery", "owner.metered",
        ),
        _SIGNS,
    ),
    "owner.free_after_s": f'with `owner.model = "free"` the model is freed after {FREE_AFTER_S:.0f} s.',
    "relay.tunnels": f"a relay takes {TUNNELS} peers at once.",
    "relay.kib_per_s": f"a relay forwards at most {KIB_PER_S} KiB a second.",
}  # fmt: skip
"""Keys of earlier versions, each with what holds instead."""


class WorkerSettings(Section, frozen=True):
    removed: ClassVar[Mapping[str, str]] = REMOVED
    draft: DraftSection = DraftSection()
    gateway: GatewaySection = GatewaySection()
    daemon: DaemonSection = DaemonSection()
    owner: OwnerSection = OwnerSection()
    peers: PeersSection = PeersSection()
    relay: RelaySection = RelaySection()


def owner_policy(owner: OwnerSection) -> OwnerPolicy:
    used: dict[str, float] = {sign: SIGN_LIMITS[sign] for sign in owner.signs}
    free_after_s = FREE_AFTER_S if owner.model == "free" else math.inf
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
