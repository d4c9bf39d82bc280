"""A whole survey of three local endpoints: what it finds, how it ends, and that it goes on where it was."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.core.errors import ConfigError
from tests.support.until import until
from tools.doubles.chat_endpoint import ChatEndpoint, Reply, serving
from tools.survey.analysis import series, summary
from tools.survey.clock import Clock
from tools.survey.config import EndpointSection, RequestSection, ScheduleSection, SurveySettings
from tools.survey.runner import Survey, api_key
from tools.survey.sample import SampleFile, SurveyFileError, read

SECRET = "sk-very-secret"


def settings_for(*servers: ChatEndpoint, key: str = "", timeout_s: float = 5.0, **schedule: Any) -> SurveySettings:
    endpoints = tuple(
        EndpointSection(name=f"e{n}", base_url=server.base_url, model="m", region=f"r{n}", api_key_env=key)
        for n, server in enumerate(servers)
    )
    times = {"interval_s": 0.1, "jitter": 0.3, "duration_h": 1.0, **schedule}
    request = RequestSection(source="here", timeout_s=timeout_s)
    return SurveySettings(schedule=ScheduleSection(**times), request=request, endpoints=endpoints)


MIDNIGHT = dt.datetime(2026, 3, 2, tzinfo=dt.UTC).timestamp()


class Ticking(Clock):
    """A clock that stands still with the machine: between two ticks, little of its time passes."""

    TICK_S = 0.01

    def __init__(self, scale: float, start: float) -> None:
        super().__init__(scale, start)
        self._passed_s, self._before = 0.0, time.monotonic()

    async def tick(self) -> None:
        """For as long as the clock is to run."""
        while True:
            self.now()
            await asyncio.sleep(self.TICK_S)

    def now(self) -> float:
        before, self._before = self._before, time.monotonic()
        self._passed_s += min(self._before - before, 5 * self.TICK_S)
        return MIDNIGHT + self._passed_s * self.scale


async def survey(settings: SurveySettings, path: Path, clock: Clock | None = None, watch: Callable[..., None] = print):
    with SampleFile(path) as file:
        return await Survey(settings, file, clock).run(watch)


@pytest.mark.live  # its times are real, and do not hold beside busy loops
async def test_a_day_of_three_endpoints_shows_what_was_put_into_them(tmp_path: Path) -> None:
    """Constant, queueing from 12 h to 18 h, and failing from 6 h to 12 h; the day takes 8 s."""
    clock = Ticking(10_800.0, MIDNIGHT)
    ticking = asyncio.create_task(clock.tick())

    def hour() -> float:
        return clock.now() / 3600 % 24

    constant = ChatEndpoint(lambda: Reply(wait_s=0.08, step_s=0))
    queueing = ChatEndpoint(lambda: Reply(wait_s=0.18 if 12 <= hour() < 18 else 0.03, step_s=0))
    failing = ChatEndpoint(lambda: Reply(status=500) if 6 <= hour() < 12 else Reply(wait_s=0.03, step_s=0))
    async with serving(constant, queueing, failing):
        settings = settings_for(constant, queueing, failing, interval_s=3600.0, duration_h=24)
        ended = await survey(settings, tmp_path / "s.jsonl", clock, lambda _: None)
    ticking.cancel()
    assert ended.signal is None
    samples = read([tmp_path / "s.jsonl"])
    first, second, third = series(samples)
    assert [len(one.at) for one in (first, second, third)] == [pytest.approx(24, abs=5)] * 3

    def median_ms(one: Any, start: int, end: int) -> float:
        return float(np.nanmedian(one.values["ttft_ms"][(one.hour >= start) & (one.hour < end)]))

    assert 79 < median_ms(first, 0, 24) < 130
    assert 29 < median_ms(second, 0, 11) < 100
    assert 179 < median_ms(second, 13, 17) < 250
    assert 29 < median_ms(second, 19, 24) < 100
    asked = (third.hour >= 7) & (third.hour < 11)
    assert asked.sum() > 1
    assert not third.ok[asked].any()
    assert third.ok[(third.hour < 5) | (third.hour > 13)].all()
    figures = summary(samples, [first, second, third], dt.UTC)
    assert [one["failures"] for one in figures["endpoints"]][:2] == [0, 0]
    assert figures["endpoints"][2]["outcomes"]["server-error"] == figures["endpoints"][2]["failures"] > 2


async def test_a_signal_ends_it_and_the_same_command_goes_on_to_the_same_count(tmp_path: Path) -> None:
    server, path = ChatEndpoint(lambda: Reply(wait_s=0.02)), tmp_path / "s.jsonl"
    async with serving(server):
        settings = settings_for(server, count=12)
        seen: list[Any] = []

        def interrupt(sample: Any) -> None:
            seen.append(sample)
            if len(seen) == 5:
                os.kill(os.getpid(), signal.SIGTERM)

        ended = await survey(settings, path, watch=interrupt)
        assert (ended.signal, ended.samples) == (signal.SIGTERM, 5)
        assert len(read([path])) == 5, "each line is on the disk when it is shown"
        ended = await survey(settings, path, watch=lambda _: None)
        assert (ended.signal, ended.samples) == (None, 7)
        ended = await survey(settings, path, watch=lambda _: None)
        assert (ended.signal, ended.samples) == (None, 0)
    assert len(read([path])) == 12
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_the_duration_counts_from_the_first_sample_in_the_file(tmp_path: Path) -> None:
    server, path = ChatEndpoint(Reply), tmp_path / "s.jsonl"
    async with serving(server):
        now = Clock(36_000.0, MIDNIGHT)  # an hour is 0.1 s
        settings = settings_for(server, duration_h=30.0, interval_s=3600.0)
        await survey(settings, path, now, lambda _: None)
        before = len(read([path]))
        assert 2 <= before <= 31
        later = Clock(36_000.0, MIDNIGHT + 31 * 3600)
        assert (await survey(settings, path, later, lambda _: None)).samples == 0
    assert len(read([path])) == before


async def test_a_killed_survey_leaves_whole_lines_and_is_continued(tmp_path: Path) -> None:
    server, path = ChatEndpoint(Reply), tmp_path / "s.jsonl"
    async with serving(server):
        await survey(settings_for(server, count=3), path, watch=lambda _: None)
        path.write_bytes(path.read_bytes()[:-9])  # what a power cut may leave
        ended = await survey(settings_for(server, count=3), path, watch=lambda _: None)
    assert ended.samples == 1
    assert len(read([path])) == 3


@pytest.mark.live  # its times are real, and do not hold beside busy loops
async def test_a_rate_limited_endpoint_is_left_alone_for_the_stated_time(tmp_path: Path) -> None:
    asked: list[float] = []

    def refuse_first() -> Reply:
        asked.append(time.monotonic())
        return Reply(status=429, retry_after="1") if len(asked) == 2 else Reply(step_s=0)

    server = ChatEndpoint(refuse_first)
    async with serving(server):
        await survey(settings_for(server, count=8), tmp_path / "s.jsonl", watch=lambda _: None)
    gaps = np.diff(asked)
    assert gaps[1] >= 1.0, "Retry-After is honoured"
    assert np.median([gaps[0], *gaps[2:]]) < 1.0, "and the others are not held up"
    samples = read([tmp_path / "s.jsonl"])
    assert [sample.outcome for sample in samples] == ["ok", "rate-limited", *["ok"] * 6]
    assert samples[2].skipped >= 8, "what was left out is reported"


@pytest.mark.live  # its times are real, and do not hold beside busy loops
async def test_a_slow_endpoint_holds_no_other_up_and_is_asked_once_at_a_time(tmp_path: Path) -> None:
    under_way: Counter[str] = Counter()
    most: list[int] = []

    class Slow(ChatEndpoint):
        async def answer(self, request: Any) -> Any:
            under_way["slow"] += 1
            most.append(under_way["slow"])
            try:
                return await super().answer(request)
            finally:
                under_way["slow"] -= 1

    slow, quick = Slow(lambda: Reply(wait_s=0.7)), ChatEndpoint(lambda: Reply(step_s=0))
    async with serving(slow, quick):
        settings = settings_for(slow, quick, count=10, interval_s=0.2)
        counts: Counter[str] = Counter()

        def count(sample: Any) -> None:
            counts[sample.endpoint] += 1

        running = asyncio.ensure_future(survey(settings, tmp_path / "s.jsonl", watch=count))
        await until(lambda: counts["e1"] == 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert max(most) == 1
    assert 1 <= counts["e0"] <= 5, "it would have been asked ten times too"


@pytest.mark.claim("keys-and-prompts-are-in-no-sample")
async def test_keys_and_prompts_are_in_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    server, path = ChatEndpoint(Reply), tmp_path / "s.jsonl"
    async with serving(server):
        settings = settings_for(server, key="MY_KEY", count=2)
        await survey(settings, path, watch=lambda _: None)
    assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"
    text = path.read_text()
    for private in (SECRET, settings.request.prompt, "127.0.0.1", "MY_KEY"):
        assert private not in text


def test_a_missing_or_unusable_key_is_reported_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = EndpointSection(name="far", base_url="https://x/v1", model="m", api_key_env="sk_pasted_here_by_mistake")
    with pytest.raises(ConfigError) as error:
        api_key(endpoint)
    assert "of endpoint far names is not set" in str(error.value)
    assert "sk_pasted" not in str(error.value)
    monkeypatch.setenv("sk_pasted_here_by_mistake", "sk-a\nHost: evil")
    with pytest.raises(ConfigError, match="characters that no header can carry") as error:
        api_key(endpoint)
    assert "evil" not in str(error.value)


def test_without_endpoints_nothing_begins(tmp_path: Path) -> None:
    with SampleFile(tmp_path / "s.jsonl") as file, pytest.raises(ConfigError, match="no endpoints to ask"):
        Survey(SurveySettings(), file)


async def test_a_file_that_cannot_be_written_any_more_ends_it(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    server = ChatEndpoint(Reply)
    async with serving(server):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))  # a disk with room for two samples or so
            with pytest.raises(SurveyFileError, match="cannot write it"):
                await survey(settings_for(server), tmp_path / "s.jsonl", watch=lambda _: None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
    assert 1 <= len(read([tmp_path / "s.jsonl"])) <= 3
