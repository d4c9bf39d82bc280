"""`python -m tools.parts.http_engine VERB VENV`: the engine `http` before a `vllm serve` that nobody has changed.

VENV is what `make vllm` made. vLLM has both cores, and none of this project's options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgespec_lab import verbs

VERBS = ("texts", "draws", "speed", "calls")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return verbs.run(verbs.command("tools.parts.http_engine", VERBS, __doc__ or ""), arguments)


if __name__ == "__main__":
    sys.exit(main())
