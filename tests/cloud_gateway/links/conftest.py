"""Fixtures of the links' tests; a file whose gateway differs has its own fixture `gateway`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.links.paired import PairedWorkers
from tests.support.hostile import HONEST
from tests.support.links import Client, GatewayUnderTest, client, serving


@pytest.fixture
def paired(tmp_path: Path) -> PairedWorkers:
    """The operator's list of workers, on disk."""
    return PairedWorkers(tmp_path / "keys")


@pytest.fixture
async def gateway(tmp_path: Path, paired: PairedWorkers) -> AsyncIterator[GatewayUnderTest]:
    """Links that use the operator's list."""
    async with serving(tmp_path, listed=paired) as gateway:
        yield gateway


@pytest.fixture
async def honest(gateway: GatewayUnderTest) -> AsyncIterator[Client]:
    """A second worker that must not notice anything."""
    async with client(gateway, HONEST) as linked:
        yield linked


@pytest.fixture
async def nothing_escapes() -> AsyncIterator[None]:
    """No exception may end up in the event loop's handler."""
    escaped: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: escaped.append(context))
    yield
    await asyncio.sleep(0)
    assert escaped == []
