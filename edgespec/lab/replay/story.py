"""A trace as a story: the candidates at every turn, what was decided and why, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table

from cloud_gateway.core.requests.events import Send, WorkerChanged
from cloud_gateway.core.trace import format as trace
from cloud_gateway.core.trace.format import Header, Trace
from cloud_gateway.core.trace.play import Moment, Player
from edgespec.lab.replay.look import spell

USES_PHI = ("wanspec", "rolling-k", "adaptive")


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
    frames: list[str] = field(default_factory=list)
    """What became of them: `used`, `stale` or `rejected`."""
    fresh: int = 0
    """Candidates that they brought."""
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
        phi = header.settings.phi
        self._phi = float("inf") if phi == "learnt" or header.settings.name not in USES_PHI else phi
        self.turn = Turn()
        self._began: float | None = None
        self._doubt = ""
        self._verified = 0

    def take(self, moment: Moment) -> Turn | None:
        """Takes an event in; returns the turn that it ends."""
        turn = self.turn
        match moment.event:
            case trace.Decided() as event:
                return self._decided(event, moment)
            case trace.Frame():
                turn.frames.append(moment.taken.kind if moment.taken else "")
                turn.fresh += moment.fresh
            case trace.Verified(tokens, entropies):
                turn.tokens, turn.entropy = len(tokens), entropies[-1]
                turn.kept = f"{len(tokens) - 1} of {self._verified}" if self._verified else ""
                left = any(isinstance(effect, Send) and effect.diverged for effect in moment.effects)
                self._doubt = "off the path" if left else "entropy > phi" if turn.entropy > self._phi else ""
            case WorkerChanged(_, "gone" | "declined"):
                turn.worker_gone = True
        return None

    def _decided(self, event: trace.Decided, moment: Moment) -> Turn | None:
        ended = self.turn if self.turn.decision else None
        if event.act.kind == "wait" and ended and ended.decision == "wait" and moment.same:
            return None
        self._began = moment.now if self._began is None else self._began
        self._verified = len(event.act.nodes) if event.act.kind == "verify" else 0
        hand = f"{event.size} in {self.player.tree.depth()}" if event.size else ""
        why = self._why(event.act) if moment.same else f"now it would be: {spell(moment.decided)}"
        before, fresh = ([], 0) if ended else (self.turn.frames, self.turn.fresh)
        at_ms = (moment.now - self._began) * 1000
        self.turn = Turn(at_ms, hand, _short(event.act), why, frames=before, fresh=fresh, same=moment.same)
        return ended

    def _why(self, act: trace.Act) -> str:
        """The state of affairs that the decision answers."""
        link, depth = self.player.link, self.player.tree.depth()
        if act.kind == "verify" and act.nodes:
            return f"depth {depth} ≥ k" if depth >= self._k else f"depth {depth}"
        if act.kind == "catch-up":
            return f"backlog {self.player.costs.local_backlog_s * 1000:.0f} ms"
        if link is None:
            return "no worker"
        if not link.ready:
            return "prompt unread"
        return self._doubt or ("frame due" if act.kind == "wait" else "worker late")


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
    for column in ("ms", "candidates", "decision", "why", "tokens", "kept", "entropy", "frames (new, stale)"):
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
    """A plain decoding step without anything else to show."""
    return turn.decision == "plain" and turn.same and not turn.frames and not turn.worker_gone


def _frames(turn: Turn) -> str:
    """How many frames came, how many candidates they brought, and how many of them brought none."""
    count, stale = len(turn.frames), turn.frames.count("stale")
    parts = [
        f"{count} ({turn.fresh}, {stale})" if count else "",
        "refused" if "rejected" in turn.frames else "",
        "worker gone" if turn.worker_gone else "",
    ]
    return "; ".join(filter(None, parts))


def _short(act: trace.Act) -> str:
    if act.nodes:
        return f"{act.kind} {len(act.nodes)}"
    return {"verify": "plain", "catch-up": "catch up"}.get(act.kind, act.kind)
