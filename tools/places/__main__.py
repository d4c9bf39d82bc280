"""Runs `python -m tools.places`."""

from __future__ import annotations

import argparse
import sys

from tools import places, verbs


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.places", description=places.__doc__)
    places.add_arguments(parser)
    return verbs.run(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
