"""The fixture of engines over doubles."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.engines import Make, engines


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Starts engines over doubles, and stops them at the end of the test."""
    with engines() as start:
        yield start
