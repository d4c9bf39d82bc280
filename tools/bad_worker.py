"""A paired worker that misbehaves: `python -m tools.bad_worker CASE --config worker.toml`.

Service, daemon, link and keys are the product's, and so is the draft model; only its steps are not. What it reports of
its step times was measured before it misbehaves.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, cast

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked
from edgespec.core.errors import EdgespecError
from edgespec.llamacpp.drafter import Drafter
from edgespec.parts import all_parts
from edgespec.shared.starting import Starting
from edgespec.worker import config, start
from edgespec.worker.service import Service, load_drafter

CASES = ("wrong", "slow", "stalls")
"""Every token wrong; ten times slower than it reports; silent for STALL_S after the first step of each request."""
SLOWNESS = 10
STALL_S = 3.0
"""About half of the time that 128 tokens take by plain decoding on the demo's target."""


class BadDrafter:
    """A `Drafter` whose steps misbehave once `bad`."""

    def __init__(self, drafter: Drafter, case: str) -> None:
        self._drafter = drafter
        self._case = case
        self._stalled = set[Hashable]()
        self.bad = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def open(self, request: Hashable, *arguments: Any, **options: Any) -> int:
        """As the drafter; the request has not stalled yet."""
        self._stalled.discard(request)
        return self._drafter.open(request, *arguments, **options)

    def step_together(self, asked: Sequence[Asked]) -> list[list[Proposal]]:
        """The drafter's proposals: late, or with other tokens."""
        requests = {one.request for one in asked}
        if self.bad and self._case == "stalls" and requests & self._stalled:
            self._stalled = set()
            time.sleep(STALL_S)
        began = time.monotonic()
        found = self._drafter.step_together(asked)
        if not self.bad:
            return found

        self._stalled |= requests
        if self._case == "slow":
            time.sleep((SLOWNESS - 1) * (time.monotonic() - began))
        if self._case == "wrong":
            return [[self._wrong(one) for one in proposals] for proposals in found]

        return found

    def _wrong(self, proposal: Proposal) -> Proposal:
        """Neighbours of the proposed tokens in the vocabulary, at the same costs."""
        taken = set(proposal.tokens)
        tokens = list[int]()
        for token in proposal.tokens:
            while token in taken:
                token = (token + 1) % self._drafter.vocab_size
            taken.add(token)
            tokens.append(token)

        return Proposal(tokens, proposal.costs, proposal.entropy)


def main(argv: Sequence[str] | None = None) -> int:
    """Drafts badly until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tools.bad_worker", description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--config", type=Path, required=True, help="worker.toml of a worker that is paired")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    made: list[BadDrafter] = []

    def load(settings: config.WorkerSettings) -> Drafter:
        made.append(BadDrafter(load_drafter(settings), options.case))
        return cast("Drafter", made[0])

    def make(settings: config.WorkerSettings, starting: Starting) -> Service:
        service = Service(settings, load, doing=starting)
        made[0].bad = True
        return service

    try:
        asyncio.run(start.run(config.load(options.config, all_parts()), make=make))
    except EdgespecError as error:
        print(error, file=sys.stderr)
        return error.exit_code

    return 0


if __name__ == "__main__":
    sys.exit(main())
