"""`python -m tests.support.faulty gateway|worker FOLDER ARGUMENTS...`: a daemon with faults that files switch on.

While FOLDER/fail-target (fail-worker) exists, each pass of the target (draft) model fails as loudly as a library can:
it warns, logs under a name of its own, writes to standard error past Python, and raises, each time with the canaries.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.canary import ANSWER, PROMPT


def loudly(work: Callable[..., Any], switch: Path) -> Callable[..., Any]:
    """`work`, until there is a file `switch`."""

    def failing(*args: Any, **options: Any) -> Any:
        if switch.exists():
            warnings.warn(f"slow: {PROMPT}", stacklevel=1)
            for library in ("transformers.generation", "library"):  # the first has a handler of its own
                logging.getLogger(library).error("cannot go on after %r", ANSWER)
            os.write(2, f"thread panicked at parser.rs:17: {ANSWER}\n".encode())
            print(f"library: {PROMPT}", file=sys.stderr)
            raise RuntimeError(f"{PROMPT}: {ANSWER}: {args} {options}")
        return work(*args, **options)

    return failing


def main() -> int:
    """Runs the daemon."""
    side, folder, *argv = sys.argv[1:]
    if side == "gateway":
        from cloud_gateway.__main__ import main as run
        from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget

        fails = Path(folder) / "fail-target"
        LlamaCppTarget.verify = loudly(LlamaCppTarget.verify, fails)  # type: ignore[method-assign]
    else:
        from edgespec.__main__ import main as run
        from edgespec.llamacpp.drafter import Drafter

        fails = Path(folder) / "fail-worker"
        Drafter.step_together = loudly(Drafter.step_together, fails)  # type: ignore[method-assign]
    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
