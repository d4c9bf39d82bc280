"""The quota of a key over real sockets: refusals, headers, and what a request gives back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from cloud_gateway.api.admission import KeyAdmission
from cloud_gateway.part import Foundation
from cloud_gateway.parts.quotas import PART
from cloud_gateway.parts.quotas.minute import MinuteQuota
from cloud_gateway.process.config import schema
from edgespec.core.errors import ConfigError
from edgespec.shared import settings
from tests.support.echo import CHAT, echo_gateway, post
from tests.support.until import until


def admission_of(text: str) -> KeyAdmission | None:
    """The one that the part brings for a configuration."""
    configured = settings.parse(text, schema([PART]), "gateway.toml")
    foundation = Foundation(configured, *[cast(Any, None)] * 4)
    return PART.start(foundation).admission()


def remaining(headers: Mapping[str, str]) -> int:
    return int(headers["x-ratelimit-remaining-tokens"])


def test_tokens_are_limited_only_if_the_operator_says_so() -> None:
    assert admission_of("") is None
    assert isinstance(admission_of("[limits]\nkey_tokens_per_minute = 600\n"), MinuteQuota)
    with pytest.raises(ConfigError, match="a whole number from 0 to 9007199254740992"):
        admission_of("[limits]\nkey_tokens_per_minute = -1\n")


@pytest.mark.claim("one-key-cannot-have-more-answers-under-way-than-its-limit")
async def test_tokens_a_minute_are_limited_with_openais_headers(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, admissions=[MinuteQuota(1000)]) as echo:
        async with openai.AsyncOpenAI(base_url=echo.base_url, api_key=echo.key, max_retries=0) as client:
            raw = await client.chat.completions.with_raw_response.create(**CHAT, max_tokens=400)
            assert raw.headers["x-ratelimit-limit-tokens"] == "1000"
            completion = raw.parse()
            with pytest.raises(openai.RateLimitError) as limited:
                await client.chat.completions.create(**CHAT, max_tokens=999)
            assert limited.value.code == "rate_limit_exceeded"
            headers = limited.value.response.headers
            assert int(headers["retry-after"]) >= 1

        assert completion.usage is not None
        kept = 1000 - completion.usage.total_tokens
        assert remaining(headers) >= kept, "what max_tokens reserved and the completion did not use is back"


async def test_a_client_that_leaves_pays_for_what_was_generated(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, admissions=[MinuteQuota(10_000)]) as echo:
        echo.engine.gate.clear()
        leaving = asyncio.create_task(post(echo, {**CHAT, "max_tokens": 400}))
        await until(lambda: bool(echo.engine.requests))
        _, _, headers = await post(echo, {}, "/tokenize")
        assert remaining(headers) < 9_600, "reserved while it runs"

        leaving.cancel()
        echo.engine.gate.set()
        await until(lambda: not echo.engine.running)
        _, _, headers = await post(echo, {}, "/tokenize")
        assert remaining(headers) > 9_900


@pytest.mark.claim("one-key-cannot-have-more-answers-under-way-than-its-limit")
async def test_ten_tokens_that_are_tokenised_take_one_of_the_quota(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, admissions=[MinuteQuota(60)]) as echo:
        left = []
        for _ in range(3):
            status, body, headers = await post(echo, {"prompt": "x" * 249}, "/tokenize")
            left.append(remaining(headers))
            assert status == 200
            assert body["count"] == 249
        assert 35 <= left[0] <= 36
        assert 10 <= left[1] <= 12
        assert left[2] == 0

        status, body, _ = await post(echo, {"prompt": "x"}, "/tokenize")
        assert status == 429, "15 s of the quota are missing"
        assert body["error"]["code"] == "rate_limit_exceeded"
