"""`python -m tools.models fetch` puts the demo's model into the cache, as set-up does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from edgespec.lab.models import fetch_all
from edgespec.shared import models
from tools import verbs


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    text = "download what is missing; `edgespec models list` shows it"
    fetching = verbs.Verb("fetch", text, lambda parser: None, fetch)
    return verbs.run(verbs.command("tools.models", [fetching], __doc__ or ""), argv)


def fetch(_: argparse.Namespace) -> int:
    """Raises EdgespecError."""
    fetch_all([models.QUANTISED])
    return 0


if __name__ == "__main__":
    sys.exit(main())
