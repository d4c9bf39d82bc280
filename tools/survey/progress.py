"""Progress of a running survey on standard error: the plan, and on a terminal a line for each sample."""

from __future__ import annotations

import datetime as dt

from rich.console import Console

from tools.survey.runner import Ended, Survey
from tools.survey.sample import Sample


async def watched(survey: Survey, *, quiet: bool = False) -> Ended:
    """Runs the survey, with progress unless `quiet` or the output is no terminal."""
    console = Console(stderr=True, quiet=quiet)
    console.print(plan(survey), highlight=False, markup=False, soft_wrap=True)

    def watch(sample: Sample) -> None:
        if console.is_terminal:
            console.print(f"{sample.endpoint}: {_last(sample)}", highlight=False, markup=False)

    return await survey.run(watch)


def plan(survey: Survey) -> str:
    """The planned requests, in one sentence."""
    times, earlier = survey.settings.schedule, survey.earlier.total()
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
