"""Types of configuration keys of both sides, with their limits and descriptions."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgespec.core.errors import AddressError, ConfigError
from edgespec.core.protocol.messages import Name
from edgespec.core.protocol.names import MAX_NAME
from edgespec.shared.address import parse_address

LogLevel = Literal["debug", "info", "warning", "error"]
Port = Annotated[int, Meta(ge=0, le=65535)]
Host = Annotated[
    str,
    Meta(min_length=1, max_length=255, extra={"allowed": "a host name or an IP address"}),
]
Threads = Annotated[int, Meta(ge=0, le=512)]
GpuLayers = Annotated[int, Meta(ge=0, le=1000)]
Cores = tuple[Annotated[int, Meta(ge=0, le=4095)], ...]


def _check_name(name: str) -> None:
    if name:
        msgspec.convert(name, Name)


def _check_folder(folder: str) -> None:
    if folder and not folder.startswith(("/", "~")):
        raise ValueError("a relative path would mean another folder wherever the command is run")


def _check_address(address: str) -> None:
    try:
        if address:
            parse_address(address)
    except AddressError as error:
        raise ValueError(str(error).rstrip(".")) from None


def _check_model(model: str) -> None:
    if model.startswith("auto:") and model not in AUTO_MODELS:
        raise ValueError("no such automatic model")


AUTO_MODELS = ("auto:quantised", "auto:requantised", "auto:dropped", "auto:gemma")
MachineName = Annotated[
    str,
    Meta(
        max_length=64,
        extra={
            "allowed": '"" for the host name, or at most 64 letters A to Z, digits, spaces and the signs . _ @ + -',
            "check": _check_name,
        },
    ),
]
Folder = Annotated[
    str,
    Meta(
        max_length=4000,
        extra={
            "allowed": '"" or a path that begins with / or ~',
            "check": _check_folder,
        },
    ),
]
GatewayAddress = Annotated[
    str,
    Meta(
        max_length=300,
        extra={"allowed": '"", HOST:PORT or wss://HOST:PORT', "check": _check_address},
    ),
]
NetworkText = Annotated[
    str,
    Meta(
        max_length=43,
        extra={
            "allowed": 'a network such as "203.0.113.0/24"',
            "check": ipaddress.ip_network,
        },
    ),
]
_MODEL_WORDS = '"auto:quantised", "auto:requantised", "auto:dropped" or a path'
ModelPath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4000,
        extra={"allowed": _MODEL_WORDS, "check": _check_model},
    ),
]
OptionalModelPath = Annotated[
    str,
    Meta(
        max_length=4000,
        extra={"allowed": f'"" for none, {_MODEL_WORDS}', "check": _check_model},
    ),
]


def machine_name(configured: str) -> str:
    """The name that others see of this machine: the configured one, else its host name (as a `Name`)."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")
    return configured or host[:MAX_NAME] or "unnamed"


def pin(cpu: Sequence[int]) -> None:
    """Pins this thread, and all that it starts later, to the given cores; does nothing without any.

    Raises ConfigError for a missing core, which the kernel would silently ignore.
    """
    before = os.sched_getaffinity(0)
    if cpu:
        with contextlib.suppress(OSError):  # none of them is there: found below
            os.sched_setaffinity(0, cpu)
    if cpu and os.sched_getaffinity(0) != set(cpu):
        os.sched_setaffinity(0, before)
        there = ", ".join(map(str, sorted(before)))
        raise ConfigError(f"`daemon.cpu` is {list(cpu)}, but this process may use the cores {there} only.")
