"""The floods by name: what each sends, which party sends it, and what runs in its place while there is no flood."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from tools.attacks.aim import Aim

Sender = Literal["stranger", "paired", "key"]
"""Who sends it: anyone who reaches the port, a paired worker, or a client with an API key of its own."""
MODULES = ("http", "keyed", "link", "worker")
"""Those first that are imported fast."""
Run = Callable[[Aim, Counter[str]], Awaitable[None]]
"""Sends until it is cancelled, and counts what it sent and what came of it."""


async def nothing(aim: Aim, count: Counter[str]) -> None:
    """A stranger that sends nothing."""


@dataclass(frozen=True, slots=True)
class Flood:
    """One flood. `quiet` is what the same party does in the control phases."""

    text: str
    sender: Sender
    run: Run
    quiet: Run = nothing
    takes_requests: bool = False
    """The paired attacker has to be the worker that drafts: the honest one is paused meanwhile."""
    pairs: bool = False
    """A pairing window is open meanwhile, and an honest machine has to get through it."""


def all_floods() -> dict[str, Flood]:
    """By name, in the order in which they run."""
    return {name: flood for module in MODULES for name, flood in _floods(module).items()}


def find(name: str) -> Flood:
    """One flood, importing no more than it needs. Raises KeyError."""
    for module in MODULES:
        if name in (floods := _floods(module)):
            return floods[name]
    raise KeyError(name)


def _floods(module: str) -> dict[str, Flood]:
    floods: dict[str, Flood] = importlib.import_module(f"{__name__}.{module}").FLOODS
    return floods
