"""Requests of the past, out of the shipped traces, for tests of parts that listen to requests.

A part that can be removed reads traces: without it, the tests that need one are skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_gateway.core.requests.events import Listener
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import Usage
from cloud_gateway.part import PastRequest
from cloud_gateway.parts import all_parts

SHIPPED = sorted((Path(__file__).parents[1] / "parts").glob("*/traces/*.trace"))
"""The traces of that part."""


def shipped(name: str) -> Path:
    """The shipped trace of this name."""
    for path in SHIPPED:
        if path.stem == name:
            return path

    pytest.skip("the part that reads traces is removed")


def past(path: Path) -> PastRequest:
    """The request of a shipped trace."""
    parts = all_parts()
    for part in parts:
        if part.read_past is not None:
            return part.read_past(path.read_bytes(), parts)

    pytest.skip("the part that reads traces is removed")


def usage_of(request: PastRequest) -> Usage:
    """The counts of the request, after it was played."""
    made: list[Generation] = []

    def listen(generation: Generation) -> Listener:
        made.append(generation)
        return Listener()

    request.play(listen)
    return made[0].usage
