"""A tiny draft model, its drafter, and the slow twin that evaluates every leaf from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.llamacpp.drafter import Drafter
from tests.support.slow_drafter import SlowDrafter
from tests.support.tiny_gguf import make_tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


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
