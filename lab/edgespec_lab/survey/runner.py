"""The survey: requests to every endpoint on schedule, one line per result, until the end or a signal."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console

from edgespec.core.errors import ConfigError
from edgespec.shared.fields import machine_name
from edgespec.shared.starting import on_stop_signals
from edgespec_lab.survey.config import EndpointSection, SurveySettings
from edgespec_lab.survey.probe import Prober, refused
from edgespec_lab.survey.sample import Sample, SampleFile
from edgespec_lab.survey.schedule import Due, Schedule

Watch = Callable[[Sample], None]
HOUR_S = 3600.0
LONGEST_WAIT_S = 60.0
"""Until the time of day is read again: clocks may be set."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a survey ended: by which signal, if by one, and what this run measured."""

    signal: int | None
    outcomes: Mapping[str, Counter[str]]
    """Samples of this run: how many of which outcome, by endpoint."""

    @property
    def samples(self) -> int:
        """Requests of this run."""
        return sum(counter.total() for counter in self.outcomes.values())

    @property
    def any_answer(self) -> bool:
        """Whether one endpoint at least was measured."""
        return any(counter["ok"] for counter in self.outcomes.values())


class Survey:
    """One run over one file; continues where the file ends."""

    def __init__(self, settings: SurveySettings, file: SampleFile) -> None:
        """Raises ConfigError for a configuration that cannot be run: no endpoints, keys missing, rates of abuse."""
        self.settings = settings
        self._file = file
        if not settings.endpoints:
            raise ConfigError("There are no endpoints to ask; name a configuration with [[endpoints]] by --config.")

        source = machine_name(settings.request.source)
        self._probers = {
            endpoint.name: Prober(endpoint, settings.request, source, api_key(endpoint))
            for endpoint in settings.endpoints
        }
        mine = [sample for sample in file.earlier if sample.source == source and sample.endpoint in self._probers]
        self.earlier = Counter(sample.endpoint for sample in mine)
        """Samples of these endpoints that were in the file."""
        self.start = time.time()
        times = settings.schedule
        self.end = min((sample.at for sample in mine), default=self.start) + times.duration_h * HOUR_S
        self.schedule = Schedule(
            list(self._probers),
            self.start,
            self.end,
            times.interval_s,
            times.jitter,
            count=times.count,
            done=self.earlier,
            seed=f"{source} {self.start}",
        )
        self._running: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._signal: int | None = None
        self._outcomes: dict[str, Counter[str]] = {name: Counter() for name in self._probers}

    async def run(self, watch: Watch = lambda sample: None) -> Ended:
        """Runs until the schedule is over, or `stop`. `watch` sees each sample once it is on the disk.

        Raises SurveyFileError where the file cannot be written any more.
        """
        try:
            while self._signal is None and not self.schedule.is_over(now := time.time()):
                self._changed.clear()
                for due in self.schedule.due(now):
                    self._start(due, now, watch)
                with contextlib.suppress(TimeoutError):
                    wait_s = min(max(self.schedule.wake_at(now) - now, 0.0), LONGEST_WAIT_S)
                    await asyncio.wait_for(self._changed.wait(), wait_s)
                self._raise_failures()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

        return Ended(self._signal, self._outcomes)

    def stop(self, number: int) -> None:
        """Ends the survey in order, for a signal of this number."""
        self._signal = number
        self._changed.set()

    def _start(self, due: Due, now: float, watch: Watch) -> None:
        task = asyncio.ensure_future(self._measure(due, now, watch))
        self._running.add(task)
        task.add_done_callback(lambda _: self._changed.set())

    async def _measure(self, due: Due, now: float, watch: Watch) -> None:
        sample = await self._probers[due.name].sample(now, due.skipped)
        self._file.append(sample)
        self._outcomes[due.name][sample.outcome] += 1
        self.schedule.finished(due.name, time.time(), refused=refused(sample), retry_after_s=sample.retry_after_s)
        watch(sample)

    def _raise_failures(self) -> None:
        """Removes finished requests; an exception in one, such as for a full disk, ends the survey."""
        for task in [task for task in self._running if task.done()]:
            self._running.discard(task)
            task.result()


def api_key(endpoint: EndpointSection) -> str:
    """The key from the environment, "" where none is configured. Raises ConfigError, which never contains a key."""
    if not endpoint.api_key_env:
        return ""

    key = os.environ.get(endpoint.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"The environment variable that `api_key_env` of endpoint {endpoint.name} names is not set; "
            'export the key in it, or set `api_key_env` to "".'
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"The API key of endpoint {endpoint.name} holds characters that no header can carry.")

    return key


async def watched(survey: Survey, *, quiet: bool = False) -> Ended:
    """Runs the survey, with progress unless `quiet` or the output is no terminal."""
    console = Console(stderr=True, quiet=quiet)
    console.print(plan(survey), highlight=False, markup=False, soft_wrap=True)

    def watch(sample: Sample) -> None:
        if console.is_terminal:
            console.print(f"{sample.endpoint}: {_last(sample)}", highlight=False, markup=False)

    on_stop_signals(survey.stop)
    return await survey.run(watch)


def plan(survey: Survey) -> str:
    """The planned requests, in one sentence."""
    times = survey.settings.schedule
    earlier = survey.earlier.total()
    count = len(survey.settings.endpoints)
    until = dt.datetime.fromtimestamp(survey.end).astimezone().strftime("%Y-%m-%d %H:%M %Z")
    bound = f" or {times.count} request{'s' * (times.count != 1)} each" if times.count else ""
    continued = f", after {earlier} that are in the file" if earlier else ""
    return (
        f"Asking {count} endpoint{'s' * (count != 1)} about every {times.interval_s:g} s each, "
        f"until {until}{bound}{continued}."
    )


def _last(sample: Sample) -> str:
    if sample.outcome != "ok" or sample.ttft_ms is None:
        return sample.outcome
    return f"TTFT {sample.ttft_ms:.0f} ms, connect {sample.connect_ms or 0:.1f} ms"
