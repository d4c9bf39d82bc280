"""A tiny draft model, its drafter, and the slow twin that evaluates every leaf from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.llamacpp.drafter import Drafter
from tests.support.slow_drafter import SlowDrafter


@pytest.fixture(scope="module")
def slow(model: Path) -> Iterator[SlowDrafter]:
    twin = SlowDrafter(model)
    yield twin
    twin.close()


@pytest.fixture
def drafter(model: Path) -> Iterator[Drafter]:
    made = Drafter(model, context=512, sequences=8, requests=4)
    yield made
    made.shutdown()
