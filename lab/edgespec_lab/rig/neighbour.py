"""A neighbour: a process that drafts for nobody on the worker's core, as a worker of another request would.

While a model drafts on one core, a target pass on another takes longer, since both read their weights from the same
memory. Two machines share none, so a comparison on one machine gives every arm the same neighbour: remote arms have
their worker, the others this. `python -m edgespec_lab.rig.neighbour MODEL` drafts while it is asked to, and ends with
its standard input or after MAX_S.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from edgespec_lab.rig.processes import Processes, module

if TYPE_CHECKING:
    from edgespec.llamacpp.drafter import Drafter

MAX_S = 4 * 3600.0
"""Longer than any table; ends a neighbour whose parent was killed with its pipe open elsewhere."""
CONTEXT = 512
"""Tokens after which the neighbour's request begins again, as completions end."""
PROMPT = 64
NAME = "neighbour"


class Neighbour(Processes):
    """The process, held still until `drafting`."""

    def __init__(self, folder: Path, draft: str, core: int | None) -> None:
        super().__init__(folder)
        self._draft = draft
        self._core = core
        self.steps = 0
        """Draft steps that it made, over all blocks so far."""

    def __enter__(self) -> Self:
        self.start(NAME, [*module("edgespec_lab.rig.neighbour"), self._draft], self._core, piped=True)
        self.line(NAME)
        return self

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """It drafts until the block is left. Raises RigError if it has ended."""
        self.say(NAME, b"draft")
        self.line(NAME)
        try:
            yield
        finally:
            self.say(NAME, b"rest")
            self.steps += int(self.line(NAME))


class Drafting:
    """Drafts in a thread while `active`: one leaf, then as many as a worker of this model would take, and on."""

    def __init__(self, drafter: Drafter) -> None:
        from edgespec.llamacpp.step_time import affordable_leaves, measured_curve

        self._drafter = drafter
        self._leaves = affordable_leaves(measured_curve(drafter))
        self.active = threading.Event()
        self.steps = 0
        self.ended = False
        self.resting = threading.Event()
        self._length = 0

    def run(self, until: float) -> None:
        """Until that moment on the monotonic clock."""
        self._open()
        while time.monotonic() < until and not self.ended:
            if not self.active.is_set():
                self.resting.set()
                self.active.wait(1.0)
                continue
            self.resting.clear()
            if self._length >= CONTEXT:
                self._drafter.close(NAME, keep=False)
                self._open()
            self._round()

    def _open(self) -> None:
        self._drafter.open(NAME, [token % self._drafter.vocab_size for token in range(100, 100 + PROMPT)])
        self._length = PROMPT

    def _round(self) -> None:
        best = self._drafter.step(NAME, [()], self._leaves)[0].tokens
        if self._leaves > 1:
            self._drafter.step(NAME, [(token,) for token in best[: self._leaves]], 1)
        self.steps += 1 + (self._leaves > 1)
        self._drafter.commit(NAME, [best[0]])
        self._length += 1


def main(model: Path) -> None:
    """Lines in: `draft`, `rest`; a line out for each: when it has begun, and how many steps it made."""
    from edgespec.llamacpp.drafter import Drafter

    drafting = Drafting(Drafter(model, context=2 * CONTEXT, sequences=16, threads=1))
    threading.Thread(target=drafting.run, args=[time.monotonic() + MAX_S], daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "draft":
            before = drafting.steps
            drafting.active.set()
            print("drafting", flush=True)
        else:
            drafting.active.clear()
            drafting.resting.wait(10.0)
            print(drafting.steps - before, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
