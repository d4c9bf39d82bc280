"""`python -m tools.bench [VERB]`: times the host side; `rounds` without a verb."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgespec_lab import verbs

NAMES = ("rounds",)
LONG = ("live", "map", "plan", "policies", "worst")
"""Only when asked for by name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the benchmark, or the first bad one of all."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = verbs.command("tools.bench", (*NAMES, *LONG), __doc__ or "")
    statuses = [verbs.run(parser, one) for one in ([given] if given else [[name] for name in NAMES])]
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
