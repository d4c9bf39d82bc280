"""`python -m tools.survey`, and `python -m tools.survey report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from edgespec.shared import command
from tools import survey


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.survey", description=survey.__doc__)
    survey.add_arguments(parser)
    return command.run(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
