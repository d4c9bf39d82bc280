"""`python -m tools.models fetch [--second]` puts the demo's and the tests' models into the cache; `list` shows them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from edgespec.core.errors import EdgespecError
from edgespec.shared import models


class Reporter:
    """Prints progress: one line that changes on a terminal, elsewhere a new line at every quarter."""

    def __init__(self) -> None:
        self._what, self._quarter, self._started_s = "", -1, 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Takes a step of `done` out of `total` bytes, or of fewer than 1000 other things."""
        if what != self._what:
            self._what, self._quarter, self._started_s = what, -1, time.monotonic()
        quarter = 4 * done // max(total, 1)
        if quarter == self._quarter and not sys.stdout.isatty():
            return
        self._quarter = quarter
        seconds = time.monotonic() - self._started_s
        amount = f"{done} of {total}" if total < 1000 else f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
        text = f"  {what}: {amount}, {seconds:.0f} s"
        end = "\n" if done >= total or not sys.stdout.isatty() else ""
        print(f"\r{text}" if sys.stdout.isatty() else text, end=end, flush=True)


def fetch(wanted: Sequence[models.Model]) -> None:
    """Fetches what is missing and says where each model is."""
    reporter = Reporter()
    for model in wanted:
        print(f"{model.file}: {models.fetch(model, reporter)}")


def show() -> None:
    """Lists the folder of the models."""
    folder = models.model_dir()
    files = sorted([*folder.glob("*.gguf"), *folder.glob("*/model.safetensors")])
    print(f"{folder}: {len(files)} models")
    for path in files:
        print(f"  {path.stat().st_size / 1e6:7.1f} MB  {path.relative_to(folder)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.models", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    fetch_parser = verbs.add_parser("fetch", help="download what is missing")
    fetch_parser.add_argument("--second", action="store_true", help="the model with another tokenizer too (253 MB)")
    verbs.add_parser("list", help="show what is there")
    arguments = parser.parse_args(argv)
    try:
        if arguments.verb == "list":
            show()
        else:
            fetch([models.QUANTISED, models.SECOND] if arguments.second else [models.QUANTISED])
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
