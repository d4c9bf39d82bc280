"""`edgespec learn`: a draft learns from a target's own text, so that it is right more often (docs/learning.md)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from edgespec.core.errors import MissingPackageError
from edgespec.worker.part import WorkerPart, WorkerVerb


def _run(args: Namespace) -> int:
    """Trains, measures, and keeps the result if it is better. Returns the exit code. Raises EdgespecError."""
    try:
        import gguf  # noqa: F401
        import jinja2  # noqa: F401
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"`edgespec learn` needs the package {error.name}, which is not installed for {sys.executable}: run "
            '`pip install "edgespec[learn]"` there.'
        ) from error

    from edgespec.parts.healing.command import run

    return run(args)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("draft", metavar="DRAFT", help="the draft, a GGUF file or a fetched name; it is not changed")
    parser.add_argument("--target", required=True, help="the target, a GGUF file or a fetched name")
    parser.add_argument("--base", help="the draft's weights less quantised (default: the target's, if they are its)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines or text (default: the target's own)")
    parser.add_argument("--held-out", type=Path, metavar="FILE", help="prompts that are only measured on")
    parser.add_argument("--held-back", type=int, default=32, metavar="N", help="prompts measured on (default: 32)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of writing and training, over all runs")
    parser.add_argument("--steps", type=int, default=0, help="end after so many steps (default: by the minutes)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the healed draft (default: DRAFT.learnt.gguf)")
    parser.add_argument("--format", metavar="NAME", help="of the trained weights, as q4_0 (default: as they are)")
    parser.add_argument("--max-tokens", type=int, default=96, metavar="N", help="tokens of a completion (default: 96)")
    parser.add_argument("--rank", type=int, default=16, metavar="N", help="of the updates (default: 16)")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate (default: 0.001)")
    parser.add_argument("--seed", type=int, default=1, help="of the updates, and which prompts are held back")
    parser.add_argument("--threads", type=int, default=0, help="0: one for each core")
    parser.add_argument("--resume", action="store_true", help="go on from the state beside the output")


PART = WorkerPart(
    "healing",
    verbs=[WorkerVerb("learn", _run, "train a draft on a target's text, so that it is right more often", _arguments)],
)
