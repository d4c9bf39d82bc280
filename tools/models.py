"""`python -m tools.models fetch` puts the demo's model into the cache, as set-up does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from edgespec.core.errors import EdgespecError
from edgespec.lab.models import fetch_all
from edgespec.shared import models


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.models", description=__doc__)
    parser.add_argument("verb", choices=["fetch"], help="download what is missing; `edgespec models list` shows it")
    parser.parse_args(argv)
    try:
        fetch_all([models.QUANTISED])
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
