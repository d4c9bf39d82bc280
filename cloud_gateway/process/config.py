"""The gateway's configuration: every key of `configs/gateway.toml`, which gives units and reasons for each."""

from __future__ import annotations

import argparse
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from cloud_gateway.core.policies.settings import DEFAULTS, SOURCES, PolicySettings
from cloud_gateway.core.requests.request import RequestBounds
from cloud_gateway.models.settings import TargetSettings
from cloud_gateway.part import GatewayPart
from edgespec.shared import settings
from edgespec.shared.address import DEFAULT_PORT
from edgespec.shared.fields import (
    Cores,
    Folder,
    GpuLayers,
    Host,
    LogLevel,
    MachineName,
    ModelPath,
    OptionalModelPath,
    Port,
    Threads,
)
from edgespec.shared.part import Settings, composed
from edgespec.shared.settings import Removed, Section


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a port on this host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


LLAMACPP = "llamacpp"
"""The engine of the core."""
_VLLM = re.compile(r"vllm(:.+|\+https?://[^/\s]+)?")
"""Engines of another distribution, edgespec-vllm, in a process of its own."""
_VLLM_VALUES = ("vllm", "vllm:COMMAND", "vllm+http://HOST:PORT")


class TargetSection(TargetSettings, frozen=True, kw_only=True):
    model: ModelPath = "auto:quantised"
    engine: str = "auto"
    exact: Literal["auto", "yes", "no"] = "auto"
    n_gpu_layers: GpuLayers = 0
    threads: Threads = 0


class LocalDraftSection(Section, frozen=True):
    """[local_draft]: the draft model at the gateway, used while there is no tree of a worker."""

    model: OptionalModelPath = "auto:quantised"
    threads: Threads = 0
    n_gpu_layers: GpuLayers = 0


class ApiSection(RequestBounds, frozen=True, kw_only=True):
    host: Host = "127.0.0.1"
    port: Port = 8080


class LinkSection(Section, frozen=True):
    host: Host = "0.0.0.0"  # noqa: S104  workers come from other machines; each must be paired
    port: Port = DEFAULT_PORT
    name: MachineName = ""


class DaemonSection(Section, frozen=True):
    state_dir: Folder = ""
    log_level: LogLevel = "info"
    cpu: Cores = ()


_CACHES = "`api.prefix_cache` holds for the target, the local draft and the workers."
_PROXY = "it is a constant; limit addresses by the TLS proxy before the API."
_CONSTANT = "it is a constant."
REMOVED: Mapping[str, Removed] = {
    "target.kernels": Removed("the fastest that are exact on this processor are used.", ("packed",)),
    "target.prefill_chunk": Removed("a pass reads at most 128 tokens of a prompt.", (128,)),
    "target.prefill_ms": Removed("a batch of a prompt takes at most 250 ms beside completions that run.", (250.0,)),
    "target.prefix_cache": Removed(_CACHES, (True,)),
    "local_draft.prefix_cache": Removed(_CACHES, (True,)),
    "policy.depth": Removed("`policy.verify_nodes` limits what is verified.", (64, 16)),
    "api.keepalive_s": Removed("a silent stream gets a comment every 10 s.", (10.0,)),
    "api.client_policies": Removed('a client that `api.client_options` allows "policy" may ask for any.', ([],)),
    "api.client_max_k": Removed('a client that `api.client_options` allows "k" may ask for any up to 16.', (16,)),
    "limits.connections": Removed("the API takes 1024, or as many as the limit of open files allows.", (1024,)),
    "limits.unproven_connections": Removed(_PROXY, (256,)),
    "limits.unproven_per_source": Removed(_PROXY, (0,)),
    "limits.connections_per_s": Removed(_PROXY, (1000.0,)),
    "limits.head_timeout_s": Removed("headers must arrive within 10 s.", (10.0,)),
    "limits.idle_timeout_s": Removed("a connection without a request is closed after 75 s.", (75.0,)),
    "api.queue_limit": Removed("64 completions may wait for a slot.", (64,)),
    "limits.key_running": Removed("one key may hold all slots but one if there are several keys.", (0,)),
    "limits.key_waiting": Removed("the completions of one key may take half of the 64 places of the queue.", (32,)),
    "limits.key_body_kb": Removed("one key may have 16 MiB of request bodies under way.", (16384,)),
    "link.connections": Removed("the link port takes 1024, or as many as the limit of open files allows.", (1024,)),
    "link.unproven_connections": Removed(_CONSTANT, (64,)),
    "link.unproven_per_source": Removed(_CONSTANT, (16,)),
    "link.connections_per_s": Removed(_CONSTANT, (20.0,)),
}
"""Keys of earlier versions, each with what holds instead."""


class GatewaySettings(Settings, frozen=True):
    """The tables of the core; `schema` adds those of the parts."""

    removed: ClassVar[Mapping[str, Removed]] = REMOVED
    parts: ClassVar[Sequence[GatewayPart]] = ()
    target: TargetSection = TargetSection()
    local_draft: LocalDraftSection = LocalDraftSection()
    policy: PolicySettings = PolicySettings()
    api: ApiSection = ApiSection()
    link: LinkSection = LinkSection()
    daemon: DaemonSection = DaemonSection()

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Keys whose values exclude each other or name nothing, each with what is allowed."""
        yield from self._unknown_names()
        if self.api.max_tokens > self.api.max_tokens_limit:
            yield "api.max_tokens", f"at most `api.max_tokens_limit`, which is {self.api.max_tokens_limit}"
        longest = self.target.context + 1 + self.policy.verify_nodes
        if 0 < self.target.kv_tokens < longest:
            yield "target.kv_tokens", f"0, or at least {longest}: `target.context` and the candidates of a pass"
        yield from super().conflicts()
        yield from self._port_conflicts()

    def _port_conflicts(self) -> Iterator[tuple[str, str]]:
        tables = ["link", "api", *(port.table for part in self.parts for port in part.ports)]
        listed = ", ".join(f"[{table}]" for table in tables[:-1])
        allowed = f"another port than that of {listed} and [{tables[-1]}]"

        taken: set[int] = set()
        for table in tables:
            number = getattr(self, table).port
            if number in taken:
                yield f"{table}.port", allowed

            if number:
                taken.add(number)

    def _unknown_names(self) -> Iterator[tuple[str, str]]:
        """Names that neither the core has nor a part."""
        engines = ["auto", LLAMACPP]
        sources = list(SOURCES)
        methods = [DEFAULTS.verification]
        for part in self.parts:
            engines += part.engines
            sources += part.sources
            methods += part.methods

        if self.target.engine not in engines and not _VLLM.fullmatch(self.target.engine):
            yield "target.engine", _alternatives([*engines, *_VLLM_VALUES])
        if self.policy.name != DEFAULTS.name:
            policies = self._policies()
            if self.policy.name not in policies:
                yield "policy.name", _alternatives(policies)
        if not set(self.policy.sources) <= set(sources):
            yield "policy.sources", f"a list, each item {_alternatives(sources)}"
        if self.policy.verification not in methods:
            yield "policy.verification", _alternatives(methods)

    def _policies(self) -> Sequence[str]:
        """Names of all policies."""
        from cloud_gateway.core.policies.registry import NAMES  # numpy, for which no command has to wait

        names = list(NAMES)
        for part in self.parts:
            names += part.policies
        return names


def _alternatives(names: Sequence[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)


def schema(parts: Sequence[GatewayPart]) -> type[GatewaySettings]:
    """The settings of a gateway with these parts."""
    return composed(GatewaySettings, parts)


def load(path: Path | None, parts: Sequence[GatewayPart]) -> GatewaySettings:
    """`settings.load_usual` for a gateway with these parts. Raises ConfigError."""
    return settings.load_usual(path, "gateway", schema(parts))


def given(args: argparse.Namespace) -> GatewaySettings:
    """The configuration file of a command line with its `--set` and ports, checked together. Raises ConfigError."""
    ports = {"api.port": "port", "link.port": "link_port"}

    for part in args.parts:
        ports.update((f"{port.table}.port", f"{port.table}_port") for port in part.ports)

    options = {key: getattr(args, option, None) for key, option in ports.items()}
    return settings.assigned(load(args.config, args.parts), args.set, options)
