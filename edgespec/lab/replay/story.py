"""A trace as a story: the candidates at every turn, what was decided and why, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table

from cloud_gateway.core.trace import format as trace
from cloud_gateway.core.trace.format import Header, Trace
from cloud_gateway.core.trace.play import Moment, Player
from cloud_gateway.core.verify.candidates import Merged
from edgespec.lab.replay.look import spell

USES_PHI = ("wanspec", "rolling-k")


@dataclass(slots=True)
class Turn:
    """One decision and what happened until the next one."""

    at_ms: float = 0.0
    """Since the first decision."""
    hand: str = ""
    decision: str = ""
    why: str = ""
    tokens: int = 0
    """Emitted."""
    kept: str = ""
    """Candidates that the target took too, of those verified."""
    entropy: float | None = None
    """Nats, of the last token emitted."""
    frames: list[Merged | None] = field(default_factory=list)
    """What became of them; None for one that was refused."""
    worker_gone: bool = False
    same: bool = True
    times: int = 1
    """Plain steps in one row."""


def turns(recorded: Trace) -> Iterator[Turn]:
    """Every decision in turn; waiting that is asked for again is one. Raises TraceError."""
    player = Player(recorded)
    teller = _Teller(player, recorded.header)
    for moment in player.play():
        done = teller.take(moment)
        if done is not None:
            yield done
    if teller.turn.decision:
        yield teller.turn


class _Teller:
    """Gathers events into turns."""

    def __init__(self, player: Player, header: Header) -> None:
        self.player, self._k = player, header.settings.k
        self._phi = header.settings.phi if header.policy in USES_PHI else float("inf")
        self.turn = Turn()
        self._began: float | None = None
        self._doubt = ""
        self._verified = 0

    def take(self, moment: Moment) -> Turn | None:
        """Takes an event in; returns the turn that it ends."""
        event, turn = moment.event, self.turn
        match event:
            case trace.Decided():
                return self._decided(event, moment)
            case trace.Frame():
                turn.frames.append(moment.merged)
            case trace.Committed(tokens, entropies):
                turn.tokens, turn.entropy = len(tokens), entropies[-1] if entropies else None
                turn.kept = f"{len(tokens) - 1} of {self._verified}" if self._verified else ""
            case trace.RoundEnded():
                doubtful = turn.entropy is not None and turn.entropy > self._phi
                self._doubt = "off the path" if not event.at_leaf else "entropy > phi" if doubtful else ""
            case trace.Discarded():
                turn.worker_gone = True
        return None

    def _decided(self, event: trace.Decided, moment: Moment) -> Turn | None:
        ended = self.turn if self.turn.decision else None
        if isinstance(event.act, trace.Waited) and ended and ended.decision == "wait" and moment.same:
            return None
        self._began = event.now if self._began is None else self._began
        self._verified = len(event.act.nodes) if isinstance(event.act, trace.Verified) else 0
        hand = f"{event.size} in {self.player.tree.depth()}" if event.size else ""
        why = self._why(event.act) if moment.same else f"now it would be: {spell(moment.decided)}"
        before = [] if ended else self.turn.frames
        at_ms = (event.now - self._began) * 1000
        self.turn = Turn(at_ms, hand, _short(event.act), why, frames=before, same=moment.same)
        return ended

    def _why(self, act: trace.AnyAct) -> str:
        """The state of affairs that the decision answers."""
        link, depth = self.player.link, self.player.tree.depth()
        if isinstance(act, trace.Verified) and act.nodes:
            return f"depth {depth} ≥ k" if depth >= self._k else f"depth {depth}"
        if isinstance(act, trace.CaughtUp):
            return f"lags {self.player.costs.local_backlog_s * 1000:.0f} ms"
        if link is None:
            return "no worker"
        if not link.ready:
            return "prompt unread"
        return self._doubt or ("frame due" if isinstance(act, trace.Waited) else "worker late")


def folded(turns_: Iterable[Turn]) -> Iterator[Turn]:
    """Plain steps in a row, for one reason and without a frame between them, as one turn."""
    last: Turn | None = None
    for turn in turns_:
        if last is not None and _quiet(last) and _quiet(turn) and last.why == turn.why:
            last = replace(last, tokens=last.tokens + turn.tokens, entropy=turn.entropy, times=last.times + 1)
            continue
        if last is not None:
            yield last
        last = turn
    if last is not None:
        yield last


def tell(recorded: Trace, console: Console) -> None:
    """Prints the story as a table."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("ms", "candidates", "decision", "why", "tokens", "kept", "entropy", "frames (new, known, stale)"):
        table.add_column(column, justify="right" if column in ("ms", "tokens", "entropy") else "left")
    for turn in folded(turns(recorded)):
        table.add_row(
            f"{turn.at_ms:.1f}",
            turn.hand,
            turn.decision + (f" × {turn.times}" if turn.times > 1 else ""),
            turn.why,
            f"+{turn.tokens}" if turn.tokens else "",
            turn.kept,
            "" if turn.entropy is None else f"{turn.entropy:.2f}",
            _frames(turn),
            style=None if turn.same else "red",
        )
    console.print(table)


def _quiet(turn: Turn) -> bool:
    """A plain step without anything else to show."""
    return turn.decision == "plain" and turn.same and not turn.frames and not turn.worker_gone


def _frames(turn: Turn) -> str:
    """How many frames came, and what became of their nodes."""
    merged = [one for one in turn.frames if one is not None]
    sums = (sum(m.fresh for m in merged), sum(m.known for m in merged), sum(m.stale for m in merged))
    parts = [
        f"{len(turn.frames)} ({', '.join(map(str, sums))})" if merged else "",
        "refused" if None in turn.frames else "",
    ]
    return "; ".join(part for part in (*parts, "worker gone" if turn.worker_gone else "") if part)


def _short(act: trace.AnyAct) -> str:
    match act:
        case trace.Verified(nodes):
            return f"verify {len(nodes)}" if nodes else "plain"
        case trace.Drafted(leaves):
            return f"draft {len(leaves)}"
        case trace.CaughtUp():
            return "catch up"
        case _:
            return "wait"
