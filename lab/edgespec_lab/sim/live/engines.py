"""Engines that take the modelled time of a pass and say what the token process says: no weights, no arithmetic.

Everything around them is what ships. They find the answer that is wanted by the prompt, whose first token is its seed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.policies.policy import Points
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Pass, Work
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked, Rank, TokenPath, best_children
from edgespec_lab.sim.live.setting import VOCABULARY, Setting
from edgespec_lab.sim.process import TokenProcess, child, draft
from edgespec_lab.sim.steps import Curve

START_LATE_S = 60e-6
"""First estimate of how much too late the system wakes (timer slack and scheduling)."""
LEARN_S = 1e-6
"""By how much one sleep moves that estimate."""
REMEMBERED = 1 << 16


class Sleeps(Protocol):
    """What lets time pass: this machine's, or a virtual one's."""

    def now(self) -> float: ...
    def until(self, due: float) -> None: ...
    def summary(self) -> dict[str, float]: ...


class Sleeper:
    """Sleeps until a moment, and asks to be woken as much earlier as the system usually is late. For one thread.

    The correction is the running median, which a few long delays (another process had the core) do not move.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._late_s = START_LATE_S
        self.errors: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds between the latest moments asked for and the returns."""

    def now(self) -> float:
        """By its clock."""
        return self._clock()

    def until(self, due: float) -> None:
        """Returns about then; at once where that is past."""
        ahead = due - self._clock() - self._late_s
        if ahead > 0:
            self._sleep(ahead)
        error = self._clock() - due
        self.errors.append(error)
        if ahead > 0:
            self._late_s = max(self._late_s + (LEARN_S if error > 0 else -LEARN_S), 0.0)

    def summary(self) -> dict[str, float]:
        """Microseconds of `errors`: mean and percentiles; empty before the second one."""
        if len(self.errors) < 2:
            return {}
        figures = {"mean": np.mean(self.errors)} | {f"p{q}": np.percentile(self.errors, q) for q in (50, 90, 99)}
        return {f"{name}_us": round(float(seconds) * 1e6, 1) for name, seconds in figures.items()}


CONTEXT = 1 << 20


class Answer:
    """One request: `position` is that of the last committed token in the process, the prompt's last being 0."""

    def __init__(self, process: TokenProcess) -> None:
        self.process = process
        self.position = 0

    def after(self, path: TokenPath) -> Proposal:
        """What the draft says after these tokens below the committed ones."""
        state = self.position
        for token in path:
            state = child(self.process, state, token)
        return draft(self.process, state)


class SleepingRows:
    """What the target says of one tree: its own tokens at every depth, which is right along the path it takes."""

    def __init__(self, answer: Answer, tree: FlatTree) -> None:
        places = [answer.position + depth + 1 for depth in tree.depths]
        self.argmax = [answer.process.targets[place] for place in places]
        self._entropies = [answer.process.target_entropies[place] for place in places]

    def entropy(self, row: int) -> float:
        """As the process has it."""
        return self._entropies[row]

    def logits(self, row: int) -> NDArray[np.float32]:
        """A process knows no logits; greedy answers need none."""
        raise NotImplementedError("a token process has no logits: ask for greedy answers without log-probabilities")


class SleepingTarget:
    """A `Target` whose passes take as long as the curve says, over the rows of all ready requests together."""

    vocab_size = VOCABULARY
    context = CONTEXT
    slots = 256
    eos = frozenset[int]()
    kv_tokens = sys.maxsize

    def __init__(self, setting: Setting, sleeper: Sleeps | None = None) -> None:
        self._setting = setting
        self._verify = setting.steps.verify
        self._prefill_s = setting.prefill_ms / 1e3
        self.sleeper = sleeper or Sleeper()
        self.passes: Sequence[Pass] = ()
        self.rows = 0
        """Of all passes."""
        self._open: dict[int, Answer] = {}

    def open(self, tokens: Sequence[int], scope: bytes = b"", room: int = 0) -> tuple[int, int]:
        slot = next((i for i in range(self.slots) if i not in self._open), None)
        if slot is None:
            raise IndexError("no slot is free")
        self._open[slot] = Answer(self._setting.process(tokens[0]))
        return slot, 0 if self._prefill_s else len(tokens) - 1

    def resize(self, slot: int, room: int) -> None:
        """There is room for all."""

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        self.sleeper.until(self.sleeper.now() + self._prefill_s)

    def verify(self, batch: Sequence[Work]) -> list[SleepingRows]:
        """Looks the rows up, and returns when the modelled pass would have ended."""
        rows_in_all = sum(len(work.tree) for work in batch)
        self.rows += rows_in_all
        self.passes = [Pass(rows_in_all, self._verify(rows_in_all))]
        due = self.sleeper.now() + self.passes[0].seconds
        rows = [SleepingRows(self._open[work.slot], work.tree) for work in batch]
        self.sleeper.until(due)
        return rows

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """One token is emitted after every row that is kept."""
        self._open[slot].position += len(rows)

    def close(self, slot: int) -> None:
        del self._open[slot]


class SleepingDraft:
    """A draft; it never has a backlog (WANSpec section 4.5: no measurable time)."""

    leaves = 16
    together = CONTEXT

    def __init__(self, setting: Setting, sleeper: Sleeps | None = None) -> None:
        self._curve = Curve({rows: ms / 1000 for rows, ms in setting.draft_ms.items()})
        self._setting = setting
        self._open: dict[Hashable, Answer] = {}
        self.sleeper = sleeper or Sleeper()
        self.passes = 0
        self.step_s = self._curve(1)
        self.points: Points = tuple(sorted((rows, ms / 1e3) for rows, ms in setting.draft_ms.items()))

    @property
    def token_s(self) -> float:
        """Catching up costs nothing."""
        return 0.0

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> None:
        self._open[request] = Answer(self._setting.process(tokens[0]))

    def commit(self, request: Hashable, tokens: Sequence[int]) -> None:
        self._open[request].position += len(tokens)

    def backlog(self, request: Hashable) -> int:
        return 1

    def catch_up(self, request: Hashable, limit: int) -> None:
        """Nothing to do."""

    def draft(self, asked: Sequence[Asked]) -> list[list[Proposal]]:
        """One step over these leaves; a process orders its draft tokens already, so no `rank` is asked."""
        due = self.sleeper.now() + self._curve(sum(len(one.paths) for one in asked))
        self.passes += 1
        found = [[_first(self._open[one.request].after(path), one.width) for path in one.paths] for one in asked]
        self.sleeper.until(due)
        return found

    def close(self, request: Hashable) -> None:
        self._open.pop(request, None)


class SleepingDrafter:
    """Stands in for the worker's llama.cpp (`edgespec.llamacpp.drafter.Drafter`)."""

    vocab_size = VOCABULARY
    context = CONTEXT
    prefill_batch = 8192
    requests = 8
    together = CONTEXT

    def __init__(self, setting: Setting) -> None:
        self.sequences = setting.sequences
        self.name = "sleeping"
        self.tokenizer_digest = setting.digest
        self.model_digest = setting.digest
        self._model = SleepingDraft(setting)
        self.sleeper = self._model.sleeper
        self.rows = 0

    @property
    def passes(self) -> int:
        return self._model.passes

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> int:
        """Begins a request; nothing of it is known yet."""
        self._model.open(request, tokens)
        return 0

    def commit(self, request: Hashable, tokens: Sequence[int]) -> int:
        self._model.commit(request, tokens)
        return len(tokens)

    def backlog(self, request: Hashable) -> int:
        return 1

    def catch_up(self, request: Hashable, limit: int) -> int:
        return 1

    def close(self, request: Hashable, *, keep: bool = True) -> None:
        self._model.close(request)

    def idle(self) -> None:
        """No threads to choose."""

    def shutdown(self) -> None:
        """Nothing to free."""

    def step(
        self, request: Hashable, paths: Sequence[TokenPath], width: int, rank: Rank = best_children
    ) -> list[Proposal]:
        """As `step_together`."""
        return self.step_together([Asked(request, paths, width)])[0]

    def step_together(self, asked: Sequence[Asked]) -> list[list[Proposal]]:
        """As `SleepingDraft.draft`."""
        self.rows += sum(len(one.paths) for one in asked)
        return self._model.draft(asked)


def _first(proposal: Proposal, width: int) -> Proposal:
    return Proposal(proposal.tokens[:width], proposal.costs[:width], proposal.entropy)
