"""Starting, failing and stopping: what clients receive."""

import asyncio
from pathlib import Path

import aiohttp

from tests.support.echo import CHAT, Echo, EchoEngine, echo_gateway, post
from tests.support.until import until


async def test_while_loading_and_draining_requests_get_a_503_with_retry_after(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, loaded=False) as echo:
        status, body, headers = await post(echo, CHAT)
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "loading", "5")
        assert await health(echo) == (503, "loading")
    async with echo_gateway(tmp_path) as echo:
        assert await health(echo) == (200, "ok")
        await echo.api.drain(0)
        assert await health(echo) == (503, "draining")
        status, body, _ = await post(echo, CHAT)
        assert (status, body["error"]["code"]) == (503, "shutting_down")


async def health(echo: Echo) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(echo.listener.url + "/healthz") as response:
        return response.status, (await response.json())["status"]


async def test_draining_lets_answers_end_and_cancels_the_slow_ones(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, engine=EchoEngine(step_s=0.02)) as echo:
        short = asyncio.create_task(post(echo, CHAT))
        endless = asyncio.create_task(post(echo, {**CHAT, "max_tokens": 4000, "edgespec": {"ignore_eos": True}}))
        await until(lambda: len(echo.engine.requests) == 2)
        draining = asyncio.create_task(echo.api.drain(3600))
        assert (await short)[0] == 200
        assert not draining.done()
        draining.cancel()
        await echo.api.drain(0.1)
        status, body, _ = await endless
        assert (status, body["error"]["code"]) == (503, "shutting_down")
