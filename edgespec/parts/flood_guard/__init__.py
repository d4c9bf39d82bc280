"""Bounds on what a stranger, or one machine among many, can cost a listening port beyond its number of places.

A source has a share of the places for connections that have proven nothing, and a rate at which it opens new ones; all
sources together have one, too (`sources.py`). The records of a TLS connection are counted (`records.py`).

Public, by module:

- `guards`: `FloodGuards`
- `sources`: `LINKS`, `PROXIED`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.worker.part import WorkerPart

if TYPE_CHECKING:
    from edgespec.shared.guards import Guards


def _guards() -> Guards:
    from edgespec.parts.flood_guard.guards import FloodGuards
    from edgespec.parts.flood_guard.sources import WORKSTATION

    return FloodGuards(encrypted=WORKSTATION, plain=WORKSTATION)


PART = WorkerPart("flood_guard", guards=_guards)
