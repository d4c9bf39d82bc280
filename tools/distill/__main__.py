"""`python -m tools.distill VERB`: trains drafts on the target's own text, and measures drafts by it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tools import verbs

NAMES = ("train", "measure")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the verb."""
    return verbs.run(verbs.command("tools.distill", NAMES, __doc__ or ""), arguments)


if __name__ == "__main__":
    sys.exit(main())
