"""The story of a traced request: the candidates at every decision, what was decided and why, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table

from cloud_gateway.core.policies.registry import Policies
from cloud_gateway.core.requests.events import Send, WorkerChanged
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.look import Looked, spell
from cloud_gateway.parts.request_traces.play import Moment, Player

COLUMNS = ("ms", "candidates", "decision", "why", "tokens", "kept", "entropy", "frames (new, stale)")
NUMBERS = frozenset({"ms", "tokens", "entropy"})
"""Columns that are aligned at the right."""
NAMES = {"verify": "plain", "catch-up": "catch up"}
"""Decisions without nodes that have another name in the story than in a trace."""


@dataclass(slots=True)
class ShownTurn:
    """One decision and what happened until the next one."""

    at_ms: float = 0.0
    """Since the first decision."""
    candidates: str = ""
    decision: str = ""
    why: str = ""
    same: bool = True
    tokens: int = 0
    """Emitted."""
    kept: str = ""
    """Candidates that the target took too, of those verified."""
    entropy: float | None = None
    """Nats, of the last token emitted."""
    frames: list[str] = field(default_factory=list)
    """Their outcomes: `used`, `stale` or `rejected`."""
    fresh: int = 0
    """Candidates that they brought."""
    worker_gone: bool = False
    times: int = 1
    """Plain steps in one row."""

    @property
    def quiet(self) -> bool:
        """Whether it is a plain decoding step without anything else to show."""
        return self.decision == "plain" and self.same and not self.frames and not self.worker_gone

    def cells(self) -> list[str]:
        """The row of the table, by `COLUMNS`."""
        decision = self.decision
        if self.times > 1:
            decision += f" × {self.times}"

        tokens = ""
        if self.tokens:
            tokens = f"+{self.tokens}"

        entropy = ""
        if self.entropy is not None:
            entropy = f"{self.entropy:.2f}"

        return [
            f"{self.at_ms:.1f}",
            self.candidates,
            decision,
            self.why,
            tokens,
            self.kept,
            entropy,
            self._what_came(),
        ]

    def _what_came(self) -> str:
        """How many frames came, how many candidates they brought, and how many of them brought none."""
        parts: list[str] = []
        if self.frames:
            parts.append(f"{len(self.frames)} ({self.fresh}, {self.frames.count('stale')})")
        if "rejected" in self.frames:
            parts.append("refused")
        if self.worker_gone:
            parts.append("worker gone")
        return "; ".join(parts)


def turns(recorded: trace.Trace, policies: Policies) -> Iterator[ShownTurn]:
    """Every decision in turn; waiting that is asked for again is one. Raises TraceError."""
    player = Player(recorded, policies)
    teller = _Teller(player, recorded.header)
    for moment in player.play():
        ended = teller.take(moment)
        if ended is not None:
            yield ended

    if teller.turn.decision:
        yield teller.turn


class _Teller:
    """Gathers events into turns."""

    def __init__(self, player: Player, header: trace.Header) -> None:
        self.player = player
        self.turn = ShownTurn()
        self._k = header.settings.k
        self._phi = float("inf")
        phi = header.settings.phi
        if phi != "learnt" and player.generation.policy.uses_phi:
            self._phi = phi
        self._above = 0
        """Open leaves above the learnt limit, until the latest decision."""
        self._began: float | None = None
        self._doubt = ""
        """Why the worker's drafts were doubted last; empty if they are not."""
        self._verified = 0
        """Candidates that the latest decision verifies."""

    def take(self, moment: Moment) -> ShownTurn | None:
        """Takes an event in; returns the turn that it ends."""
        match moment.event:
            case trace.Decided() as event:
                return self._decided(event, moment)
            case trace.Frame():
                self._frame(moment)
            case trace.Verified() as event:
                self._emitted(event, moment)
            case WorkerChanged(_, "gone" | "declined"):
                self.turn.worker_gone = True
        return None

    def _frame(self, moment: Moment) -> None:
        outcome = ""
        if moment.taken is not None:
            outcome = moment.taken.kind
        self.turn.frames.append(outcome)
        self.turn.fresh += moment.fresh

    def _emitted(self, event: trace.Verified, moment: Moment) -> None:
        entropy = event.entropies[-1]
        self.turn.tokens = len(event.tokens)
        self.turn.entropy = entropy
        self.turn.kept = ""
        if self._verified:
            self.turn.kept = f"{len(event.tokens) - 1} of {self._verified}"

        self._doubt = ""
        if any(isinstance(effect, Send) and effect.diverged for effect in moment.effects):
            self._doubt = "off the path"
        elif entropy > self._phi:
            self._doubt = "entropy > phi"

    def _decided(self, event: trace.Decided, moment: Moment) -> ShownTurn | None:
        """Begins a turn, unless the policy waits on; returns the one before it, if any."""
        before = self.turn
        if event.act.kind == "wait" and before.decision == "wait" and moment.same:
            return None

        self._note_learnt_limit()
        if self._began is None:
            self._began = moment.now

        self._verified = 0
        if event.act.kind == "verify":
            self._verified = len(event.act.nodes)

        self.turn = ShownTurn(
            at_ms=(moment.now - self._began) * 1000,
            candidates=self._candidates(event),
            decision=_short(event.act),
            why=self._why(event.act, moment),
            same=moment.same,
        )
        if before.decision:
            return before

        # Frames that came before the first decision are shown with it.
        self.turn.frames = before.frames
        self.turn.fresh = before.fresh
        return None

    def _note_learnt_limit(self) -> None:
        """A leaf above the limit on the entropy that the policy learnt is a reason to doubt the worker's drafts."""
        learnt = self.player.generation.policy.learnt_phi
        if learnt is not None and learnt.above > self._above:
            assert learnt.nats is not None, "no entropy is above a limit that is not there"
            self._above = learnt.above
            self._doubt = f"entropy > {learnt.nats:.2f}, learnt"

    def _candidates(self, event: trace.Decided) -> str:
        """How many there are, and in how many levels."""
        if not event.size:
            return ""
        return f"{event.size} in {self.player.tree.depth()}"

    def _why(self, act: trace.Act, moment: Moment) -> str:
        """The state of affairs that the decision answers, or what the decision would be now."""
        if not moment.same:
            return f"now it would be: {spell(moment.decided)}"

        link = self.player.link
        depth = self.player.tree.depth()
        if act.kind == "verify" and act.nodes:
            if depth >= self._k:
                return f"depth {depth} ≥ k"
            return f"depth {depth}"
        if act.kind == "catch-up":
            return f"backlog {self.player.costs.local_backlog_s * 1000:.0f} ms"
        if link is None:
            return "no worker"
        if not link.ready:
            return "prompt unread"
        if self._doubt:
            return self._doubt
        if act.kind == "wait":
            return "frame due"
        return "worker late"


def folded(turns_: Iterable[ShownTurn]) -> Iterator[ShownTurn]:
    """Plain steps in a row, for one reason and without a frame between them, as one turn."""
    last: ShownTurn | None = None
    for turn in turns_:
        if last is not None and last.quiet and turn.quiet and last.why == turn.why:
            last = replace(last, tokens=last.tokens + turn.tokens, entropy=turn.entropy, times=last.times + 1)
            continue

        if last is not None:
            yield last
        last = turn

    if last is not None:
        yield last


def tell(looked: Looked, console: Console) -> None:
    """Prints the story as a table; a decision that would be another now is red."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in NUMBERS else "left")

    for turn in folded(turns(looked.trace, looked.policies)):
        table.add_row(*turn.cells(), style=None if turn.same else "red")
    console.print(table)


def _short(act: trace.Act) -> str:
    if act.nodes:
        return f"{act.kind} {len(act.nodes)}"
    return NAMES.get(act.kind, act.kind)
