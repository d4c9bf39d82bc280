"""`python -m tools.lossless [VERB]`: the tests of losslessness that take minutes; `distribution` without a verb."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from edgespec_lab import verbs

NAMES = ("distribution", "matrix")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the verb."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help")):
        given.insert(0, NAMES[0])
    return verbs.run(parser(), given)


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    return verbs.command("tools.lossless", NAMES, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
