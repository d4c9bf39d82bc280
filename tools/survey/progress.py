"""Progress of a running survey on standard error: one bar for each endpoint with its last result."""

from __future__ import annotations

import datetime as dt

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from tools.survey.runner import Ended, Survey
from tools.survey.sample import Sample


async def watched(survey: Survey, *, quiet: bool = False) -> Ended:
    """Runs the survey, with progress unless `quiet` or the output is no terminal."""
    console = Console(stderr=True, quiet=quiet)
    console.print(plan(survey), highlight=False, markup=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[last]}"))
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        bars = _bars(survey, progress)

        def watch(sample: Sample) -> None:
            progress.update(bars[sample.endpoint], advance=1, last=_last(sample))

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


def _bars(survey: Survey, progress: Progress) -> dict[str, TaskID]:
    left = survey.schedule.left(survey.start)
    return {
        name: progress.add_task(name, total=survey.earlier[name] + count, completed=survey.earlier[name], last="")
        for name, count in left.items()
    }


def _last(sample: Sample) -> str:
    if sample.outcome != "ok" or sample.ttft_ms is None:
        return sample.outcome
    return f"TTFT {sample.ttft_ms:.0f} ms, connect {sample.connect_ms or 0:.1f} ms"
