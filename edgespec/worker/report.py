"""The text of `edgespec status`; `--json` prints what these functions are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from edgespec.core.protocol.worth import WorkerFigures, verdict
from edgespec.worker.part import WorkerPart

NAME = 13
"""Width of the first column."""


def text(status: Mapping[str, Any], parts: Sequence[WorkerPart]) -> str:
    """The state of a running worker, or of one that starts: a name and a sentence a line.

    `parts` add what they have to say of a running worker.
    """
    return "\n".join(f"{name:{NAME}} {value}" for name, value in _lines(status, parts))


def pause(answer: Mapping[str, Any]) -> str:
    if answer["paused"]:
        return f"paused: {answer['paused']}"
    return "not paused: it drafts when requests come"


def show_live(states: Iterable[Mapping[str, Any]], parts: Sequence[WorkerPart]) -> None:
    """The latest state, in place, until there are no more."""
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=False) as live:
        for state in states:
            live.update(Text(text(state, parts)), refresh=True)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as `1:02:03`."""
    return str(timedelta(seconds=round(seconds)))


def _lines(status: Mapping[str, Any], parts: Sequence[WorkerPart]) -> Iterator[tuple[str, str]]:
    if status["state"] == "starting":
        yield "state", f"starting: {status['doing']} (for {status['doing_s']:.0f} s)"
        if status["busy"]:
            yield "", status["busy"]
        return

    yield (
        "worker",
        f"{status['name']} ({status['id']}), edgespec {status['version']}, up {duration(status['uptime_s'])}",
    )
    if status["paused"]:
        yield "state", f"paused: {status['paused']}"
    else:
        yield "state", status["state"]
    yield "gateway", _gateway(status)
    freed = ""
    if not status["model_loaded"]:
        freed = " (freed)"
    yield "draft model", f"{status['model']}{freed}"
    yield "requests", f"{status['requests_open']} open, {status['requests']} since the start"
    yield "drafting", _drafting(status)
    yield "sent", f"{status['nodes']} candidates in {status['frames']} frames"
    yield from _worth(status)
    for part in parts:
        yield from part.report(status)

    title = "warnings"
    for warning in status["warnings"][-3:]:
        yield title, warning["text"]
        title = ""


def _gateway(status: Mapping[str, Any]) -> str:
    """Where the gateway is linked, or why it is not, as far as it is known."""
    if not status["linked"]:
        refused = ""
        if status["refused"]:
            refused = f": {status['refused']}"
        return f"{status['gateway']}, not linked{refused}"

    relay = ""
    if status["through"]:
        relay = f" through the peer {status['through']}"
    linked = f"{status['gateway']} at {status['address']}{relay}, round trip {status['rtt_ms']:.1f} ms"
    if status["refused"]:
        return f"{linked}. {status['refused']}"
    return linked


def _drafting(status: Mapping[str, Any]) -> str:
    spent = duration(status["drafting_s"])
    if not status["steps"]:
        if status["drafting_s"]:
            return f"no step finished in {spent} of drafting"
        return "no step yet"

    times = f"{status['step_ms']:.1f} ms a step, and {status['host_us_per_step'] / 1e3:.1f} ms beside the model"
    return f"{status['steps']} steps in {spent}: {times}"


def _worth(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The gateway's answer, and the worker's own count, which has the candidates that came too late, too."""
    figures = figures_in(status)
    if figures is None:
        yield (
            "help",
            "unknown: the gateway has not sent its figures, or is older than this worker",
        )
    else:
        yield "help", verdict(figures)

    matched = status["tokens_matched"]
    committed = status["tokens_committed"]
    percent = ""
    if committed:
        percent = f" ({matched / committed:.0%})"
    yield "draft", f"right for {matched} of {committed} tokens{percent}, in time or too late"


def figures_in(status: Mapping[str, Any]) -> WorkerFigures | None:
    """The gateway's figures of this worker; None before it has sent any."""
    books = status.get("books")
    if books is None:
        return None
    return WorkerFigures(**books)
