"""`python -m tools.survey.demo OUT`: three local endpoints with made-up queues, a day of them surveyed in four minutes.

The endpoints are real servers on this machine, the requests and their times are real. Made up are the time of day,
which runs some hundred times too fast, and why the endpoints let a request wait. The plots say so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import json
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tools import verbs
from tools.options import number
from tools.survey.__main__ import main as main_survey
from tools.survey.clock import Clock
from tools.survey.config import EndpointSection, RequestSection, ScheduleSection, SurveySettings
from tools.survey.progress import watched
from tools.survey.runner import Survey
from tools.survey.sample import SampleFile

DAY_S = 86_400.0
INTERVAL_S = 120.0
"""Of the fast clock: 30 requests an hour, enough for a p95."""
MIDNIGHT = dt.datetime(2026, 3, 2, tzinfo=dt.UTC).timestamp()


@dataclass(frozen=True, slots=True)
class Reply:
    """What an endpoint does with a request."""

    wait_s: float = 0.0
    """Before the first token."""
    status: int = 200
    retry_after: str | None = None
    tokens: int = 8
    step_s: float = 0.004
    break_after: int | None = None
    """Tokens after which the connection is cut."""
    raw: bytes | None = None
    """Sent instead of tokens."""
    content_type: str = "text/event-stream"


Behaviour = Callable[[], Reply]


@dataclass
class ChatEndpoint:
    """An OpenAI-compatible server that streams meaningless words; what it really did is kept for comparison."""

    behaviour: Behaviour
    port: int = 0
    waits_s: list[float] = field(default_factory=list)
    """From a request having arrived to its first token having been written, by this server's own clock."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        """What a survey's configuration names."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        arrived = time.perf_counter()
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        reply = self.behaviour()
        if reply.status != 200:
            headers = {"Retry-After": reply.retry_after} if reply.retry_after is not None else {}
            return web.json_response({"error": {"message": "no"}}, status=reply.status, headers=headers)
        response = web.StreamResponse(headers={"Content-Type": reply.content_type})
        await response.prepare(request)
        await response.write(_event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        await asyncio.sleep(reply.wait_s)
        if reply.raw is not None:
            await response.write(reply.raw)
            return response
        for token in range(reply.tokens):
            if token == reply.break_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(_event({"choices": [{"delta": {"content": f"{token} "}}]}))
            if token == 0:
                self.waits_s.append(time.perf_counter() - arrived)
            await asyncio.sleep(reply.step_s)
        await response.write(_event({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
        await response.write(_event({"choices": [], "usage": {"completion_tokens": reply.tokens}}))
        await response.write(b"data: [DONE]\n\n")
        return response


@contextlib.asynccontextmanager
async def serving(*endpoints: ChatEndpoint) -> AsyncIterator[None]:
    """Serves each endpoint on a free port of loopback."""
    runners = []
    try:
        for endpoint in endpoints:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", endpoint.answer)
            runner = web.AppRunner(app, access_log=None)
            runners.append(runner)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", endpoint.port).start()
            endpoint.port = runner.addresses[0][1]
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


def _event(item: Any) -> bytes:
    return b"data: " + json.dumps(item).encode() + b"\n\n"


def steady(rng: random.Random) -> Behaviour:
    """Far away and hardly loaded: always about the same wait."""
    return lambda: Reply(wait_s=rng.uniform(0.14, 0.16))


def diurnal(rng: random.Random, clock: Clock) -> Behaviour:
    """Near, and with a queue during its working day, longest at 14 h."""

    def behave() -> Reply:
        hour = clock.now() / 3600 % 24
        load = max(0.0, math.cos((hour - 14) / 12 * math.pi)) ** 2
        return Reply(wait_s=0.04 + rng.expovariate(1 / (0.01 + 0.2 * load)))

    return behave


def unreliable(rng: random.Random, clock: Clock) -> Behaviour:
    """Quick at the median, with a long tail all day, and failing in the evening."""

    def behave() -> Reply:
        if 18 <= clock.now() / 3600 % 24 < 22 and rng.random() < 0.4:
            return rng.choice(
                [Reply(status=429, retry_after="1"), Reply(status=503), Reply(wait_s=0.02, break_after=2)]
            )
        return Reply(wait_s=0.06 + (rng.uniform(0.2, 0.4) if rng.random() < 0.12 else rng.uniform(0, 0.02)))

    return behave


async def survey_day(out: Path, day_s: float, seed: int) -> None:
    """Serves and surveys the three endpoints for one day of the fast clock."""
    clock = Clock(DAY_S / day_s, MIDNIGHT)
    rng = random.Random(seed)
    behaviours: Sequence[tuple[str, str, Behaviour]] = (
        ("steady", "far region", steady(rng)),
        ("diurnal", "near region", diurnal(rng, clock)),
        ("unreliable", "third region", unreliable(rng, clock)),
    )
    servers = [ChatEndpoint(behaviour) for _, _, behaviour in behaviours]
    async with serving(*servers):
        settings = SurveySettings(
            schedule=ScheduleSection(interval_s=INTERVAL_S),
            request=RequestSection(source="demonstration"),
            endpoints=tuple(
                EndpointSection(name=name, base_url=server.base_url, model="made-up", region=region)
                for (name, region, _), server in zip(behaviours, servers)
            ),
        )
        with SampleFile(out) as file:
            await watched(Survey(settings, file, clock))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.survey.demo", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="file for the samples; plots go beside it")
    parser.add_argument(
        "--seconds", type=number(float, 216, 43_200), default=240.0, help="how long the day takes (default: 240)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the made-up queues")
    parser.set_defaults(run=demonstrate)
    return verbs.run(parser, argv)


def demonstrate(options: argparse.Namespace) -> int:
    """Surveys the day and reports on it. Raises EdgespecError."""
    asyncio.run(survey_day(options.out, options.seconds, options.seed))
    return main_survey(["report", str(options.out)])


if __name__ == "__main__":
    sys.exit(main())
