"""`edgespec doctor`: why no gateway is found or nothing is drafted, and what to do."""

from __future__ import annotations

import argparse

from edgespec.worker.part import WorkerPart, WorkerVerb


def _run(args: argparse.Namespace) -> int:
    """Prints each finding as it is made. Returns the exit code of the first fault."""
    from edgespec.parts.doctor.command import run

    return run(args)


PART = WorkerPart(
    "doctor",
    verbs=[WorkerVerb("doctor", _run, "find out why no gateway is found or nothing is drafted, and what to do")],
)
