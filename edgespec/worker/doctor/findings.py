"""Findings of checks, and the checks that need only what the running worker reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ASIDE = 75
"""Exit code (EX_TEMPFAIL) if the worker is well and does not draft at present."""
MAX_STEP_S = 0.1
"""Seconds of a draft step over one leaf. A target that emits ten tokens a second is faster than this without drafts."""
MIN_MATCHED = 0.3
"""Share of committed tokens that the worker had drafted. Every policy waits longer than it gains below it."""
MIN_COMMITTED = 200
"""Committed tokens before that share says anything."""
STALLED_S = 10.0
"""Seconds of drafting without a finished step, a hundred times what a step may take."""
UNASKED_S = 300
"""Seconds after its start in which nobody may have asked for a completion."""
WARNINGS = 3
"""Latest different ones that are shown."""
DO = {
    65: "set `draft.model` to a model with the target's vocabulary",
    66: "correct `draft.model` in worker.toml; `edgespec models fetch auto:quantised` fetches the demo's",
    73: "restore the state folder from a backup, or pair again",
    77: "ask the operator for a code (`cloud-gateway pair`) and run `edgespec pair CODE`",
    78: "correct the file that is named; `edgespec config` explains every key",
}
"""The remedy of an error, by its exit code."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    says: str
    do: str = ""
    """The remedy; empty if there is nothing to do."""
    exit_code: int = 0
    """That of the process if this is the first fault; 0: no fault."""


def paused(status: Mapping[str, Any]) -> Finding:
    """Whether the running worker stepped aside: for its owner, its admin or while it loads."""
    owner = status.get("owner") or {}
    if status["paused"] is None:
        return Finding("pause", "the worker drafts when it gets a request")
    if owner.get("because"):
        do = "wait until the owner is away, or change `[owner]` in worker.toml (docs/worker.md)"
        return Finding("pause", f"the worker stepped aside for its owner: {owner['because']}", do, ASIDE)
    return Finding("pause", f"the worker is paused: {status['paused']}", "`edgespec resume`", ASIDE)


def linked(status: Mapping[str, Any]) -> Finding:
    if status["linked"]:
        return Finding("link", f"linked to {status['gateway']}")
    if status.get("refused"):
        return Finding("link", "the gateway has quarantined this worker", status["refused"], 77)
    do = "see the checks of addresses below; `edgespec run` logs each attempt"
    return Finding("link", f"the worker runs, but has no link to {status['gateway']}", do, 69)


def assigned(status: Mapping[str, Any]) -> Finding:
    """Whether the gateway assigns requests to it; only its operator can see why not."""
    if status["requests"] or not status["linked"]:
        return Finding("requests", f"{status['requests']} requests were assigned to this worker")
    if status["uptime_s"] < UNASKED_S:
        return Finding("requests", f"linked, with no request yet; it was started {status['uptime_s']} s ago")
    do = (
        "ask the operator for an API key that allows offloading to this worker's group (`cloud-gateway keys list`, "
        "`cloud-gateway workers list`), and for `why_off` in the usage of a request"
    )
    return Finding("requests", "linked, but no request was assigned to this worker", do, ASIDE)


def matched(status: Mapping[str, Any]) -> Finding:
    committed = status["tokens_committed"]
    if not status["frames"]:
        return Finding("match", "no candidate of this worker was sent, so the draft model cannot be judged")
    share = status["tokens_matched"] / committed if committed else 0.0
    if committed < MIN_COMMITTED or share >= MIN_MATCHED:
        return Finding("match", f"{share:.0%} of {committed} committed tokens were drafted before")
    do = "use a larger or less reduced draft model of the target's family (`draft.model`)"
    return Finding("match", f"only {share:.0%} of {committed} committed tokens were drafted before", do, 66)


def speed(step_s: float | None, drafting_s: float = 0.0) -> Finding:
    """Whether a draft step is fast enough to be of use; None: none was finished in `drafting_s` of drafting."""
    if step_s is None and drafting_s < STALLED_S:
        return Finding("speed", "no draft step was made yet")
    if step_s is None:
        says = f"no step was ever finished in {drafting_s:.0f} s of drafting: the machine starves it, or threads stall"
        return Finding("speed", says, "set `draft.threads = 1`, and see what else runs here (`top`)", ASIDE)
    if step_s <= MAX_STEP_S:
        return Finding("speed", f"a draft step takes {step_s * 1e3:.1f} ms")
    do = "use a smaller or quantised draft model (`draft.model`), more threads (`draft.threads`) or another machine"
    return Finding("speed", f"a draft step takes {step_s * 1e3:.0f} ms, which is too slow to be of use", do, 66)


def logged(status: Mapping[str, Any]) -> Finding:
    """The latest warnings in the log of the running worker."""
    texts = list(dict.fromkeys(one["text"] for one in status["warnings"]))[-WARNINGS:]
    return Finding("log", "; ".join(texts) if texts else "no warning since the start")


def clock(now: float, paired_at: float) -> Finding:
    """Whether the clock is before the time of pairing; both in seconds since 1970. Only `owner.hours` depends on it."""
    if now >= paired_at:
        return Finding("clock", "the clock is later than the pairing")
    do = "set it, for example with `timedatectl set-ntp true`; `owner.hours` and the times in logs are wrong until then"
    return Finding("clock", "the clock of this machine is before the time at which it was paired", do, 78)
