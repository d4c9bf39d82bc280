"""`python -m tools.parts.peer_relay.loss`: how long a worker is without its gateway when its relay is lost (a minute).

Four machines stood in by network namespaces (root and iproute2). A peer that relays is stopped, loses its cable, or is
killed in the middle of a completion. Seconds are from then until the worker's own status names the other peer. Texts
have to equal plain decoding: exit status 1 if one does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgespec_lab.markdown import table
from tests.parts.peer_relay.campus import WAYS, campus_on, lose_relay

TOKENS = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row for each run."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.peer_relay.loss", description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="runs of each way; the last way, a kill, has one")
    options = parser.parse_args(arguments)
    ways = [way for way in WAYS[:-1] for _ in range(options.runs)] + [WAYS[-1]]

    rows = []
    equal = True
    with tempfile.TemporaryDirectory(prefix="es-") as scratch, campus_on(Path(scratch)) as campus:
        for way in ways:
            lost = lose_relay(campus, way, TOKENS)
            equal = equal and lost["equal"]
            rows.append([way, *lost["relays"], f"{lost['relinked_s']:.2f}", lost["equal"]])

    print("\n".join(table(["the relay", "was", "then", "linked again after s", "text equal"], rows)))
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
