"""What `cloud-gateway status` prints for people; `--json` prints what this is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

NAME = 11
"""Width of the first column."""


def text(status: Mapping[str, Any]) -> str:
    """The state of a running gateway, or of one that starts: a name and a sentence a line."""
    return "\n".join(f"{name:{NAME}} {value}" for name, value in _lines(status))


def _lines(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    up = f"up {timedelta(seconds=status['uptime_s'])} (process {status['pid']}, cloud-gateway {status['version']})"
    if "doing" in status:
        yield "state", f"starting: {status['doing']} (for {status['doing_s']:.0f} s), {up}"
        return
    yield "state", f"{status['state']} {status['model']}, {up}"
    yield "API", f"{status['api']}/v1"
    yield "link port", status["link"]
    yield "metrics", f"{status['metrics']}/metrics"
    yield "policy", status["policy"]
    yield "workers", ", ".join(f"{status[f'workers_{kind}']} {kind}" for kind in ("linked", "paused", "quarantined"))
    asked = f"{status['requests_active']} active, {status['requests_queued']} queued"
    yield "requests", f"{asked}, {status['requests']} since the start"
    rounds = status["rounds"]
    a_pass = f" ({status['tokens'] / rounds:.2f} a pass)" if rounds else ""
    yield "tokens", f"{status['tokens']} in {rounds} passes of the target{a_pass}"
    for source, drafted in status["drafted"].items():
        accepted = status["accepted"].get(source, 0)
        share = f" ({accepted / drafted:.0%})" if drafted else ""
        yield "candidates", f"{accepted} of {drafted} by {source} were accepted{share}"
    yield "local draft", f"{status['local_draft_passes']} passes"
    for name in ("frames", "refused"):
        yield name, ", ".join(f"{count} {kind}" for kind, count in status[name].items()) or "none"
