"""Fixtures of the API's tests; a file whose gateway differs has its own fixture `echo`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from tests.support.echo import Echo, echo_gateway


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Echo]:
    """A gateway over the echo engine, with the default limits."""
    async with echo_gateway(tmp_path) as running:
        yield running


@pytest.fixture
async def client(echo: Echo) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client with the gateway's key."""
    async with openai.AsyncOpenAI(base_url=echo.base_url, api_key=echo.key, max_retries=0) as client:
        yield client
