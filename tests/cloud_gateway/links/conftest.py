"""What tests of hostile peers share; each of their files has its own fixture `gateway`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.hostile import HONEST
from tests.support.links import Client, GatewayUnderTest, client


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
