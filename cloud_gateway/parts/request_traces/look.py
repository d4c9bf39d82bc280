"""One trace: who signed it, whether its policy still decides what it decided, and its story: the candidates at every
turn, what was decided and why, and what came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cloud_gateway.core.policies.registry import Policies
from cloud_gateway.core.requests.events import Send, WorkerChanged
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces import play as replay
from cloud_gateway.parts.request_traces.format import TraceError
from edgespec.core.errors import ConfigError
from edgespec.core.protocol.names import key_id
from edgespec.parts.request_traces.gateways import name_of
from edgespec.shared.log_text import clean

SHOWN = 5
"""Differences that are printed."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A trace that was signed and played."""

    path: Path
    trace: trace.Trace
    signer: bytes
    gateway: str | None
    """Its name, if this machine's worker is paired with it."""
    as_asked: bool
    """Whether `--key` names the signer."""
    check: replay.Check
    policies: Policies
    """Those with which it was played."""

    @property
    def rounds(self) -> int:
        """Passes of the target."""
        return sum(isinstance(event, trace.Verified) for _, event in self.trace.entries)

    def row(self) -> dict[str, Any]:
        header = self.trace.header
        return {
            "file": str(self.path),
            "signed_by": key_id(self.signer),
            "gateway": self.gateway,
            **{name: getattr(header, name) for name in ("edgespec", "request", "made_at")},
            "policy": header.settings.name,
            "settings": msgspec.structs.asdict(header.settings),
            **{name: getattr(header, name) for name in ("prompt_len", "salted", "workers", "finish", "complete")},
            "tokens": trace.emitted(self.trace.entries),
            "rounds": self.rounds,
            "decisions": self.check.decisions,
            "same": self.check.decisions - len(self.check.differences),
            "differences": [msgspec.to_builtins(one) for one in self.check.differences],
        }

    def show(self, console: Console) -> None:
        """Prints a few lines. No text of the trace is read as markup."""
        header = self.trace.header
        differences = self.check.differences
        policy = self.trace.header.settings
        console.print(
            Text.assemble((clean(str(self.path)), "bold"), f": signed by {self._who()}, unaltered\n"),
            f" request {header.request}, edgespec {header.edgespec}, policy {policy.name} (k = {policy.k}, "
            f"phi = {policy.phi}): {trace.emitted(self.trace.entries)} tokens after {header.prompt_len} "
            f"in {self.rounds} passes, {_finish(header)}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        asked = self.check.decisions
        if not differences:
            lines = [Text(f"  {asked} of {asked} decisions the same, bit for bit", "green")]
        else:
            lines = [Text(f"  {len(differences)} of {asked} decisions are not the recorded ones:", "red")]
            lines += [Text(f"    {describe(one)}") for one in differences[:SHOWN]]
            lines += [Text(f"    and {len(differences) - SHOWN} more")] * (len(differences) > SHOWN)
        console.print(*lines, sep="\n", highlight=False, soft_wrap=True)

    def _who(self) -> str:
        if self.gateway:
            return f"{self.gateway} ({key_id(self.signer)})"
        return f"{'gateway' if self.as_asked else 'an unknown key,'} {key_id(self.signer)}"


def read(path: Path) -> bytes:
    """The content of a trace's file. Raises TraceError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror or error}).") from None


def look(path: Path, data: bytes, key: str | None, policies: Policies) -> Looked:
    """Checks a file's signature and plays it with these policies.

    Raises TraceError with the file's name, ConfigError for a bad `key`.
    """
    try:
        recorded, signer = trace.unseal(data)
        if key is not None and not _means(key, signer):
            raise TraceError(f"it was signed by gateway {key_id(signer)}, not by {key}.")
        checked = replay.check(recorded, policies)
        return Looked(path, recorded, signer, name_of(signer), key is not None, checked, policies)
    except TraceError as error:
        raise TraceError(clean(f"{path}: {error}")) from None


def _means(key: str, signer: bytes) -> bool:
    """Whether `key` is the signer's key id or public key."""
    text = key.lower()
    if len(text) not in (16, 64) or any(digit not in "0123456789abcdef" for digit in text):
        raise ConfigError(f"`--key {key}`: write a key id (16 hexadecimal digits) or a public key (64).")
    return text in (key_id(signer), signer.hex())


def describe(difference: replay.Difference) -> str:
    """One line: what was decided, and what would be now."""
    then = spell(difference.then_act)
    now = spell(difference.now_act)
    return f"decision {difference.number} at {difference.now:.6f} s: was {then}, is {now}"


def spell(act: trace.Act | None) -> str:
    """A decision in words; nodes by their ids."""
    match act:
        case trace.Act("verify", nodes):
            if nodes:
                return f"verify {nodes}"
            return "a plain decoding step"
        case trace.Act("draft", leaves, width):
            return f"draft at {leaves}, {width} wide"
        case trace.Act("wait", _, until):
            return f"wait until {until!r}"
        case _:
            if act:
                return "catch up"
            return "nothing"


def _finish(header: trace.Header) -> str:
    end = f"ended by {header.finish}"
    if header.complete:
        return end
    return f"{end}; the trace was full before"


@dataclass(slots=True)
class ShownTurn:
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
    """Their outcomes: `used`, `stale` or `rejected`."""
    fresh: int = 0
    """Candidates that they brought."""
    worker_gone: bool = False
    same: bool = True
    times: int = 1
    """Plain steps in one row."""


def turns(recorded: trace.Trace, policies: Policies) -> Iterator[ShownTurn]:
    """Every decision in turn; waiting that is asked for again is one. Raises TraceError."""
    player = replay.Player(recorded, policies)
    teller = _Teller(player, recorded.header)
    for moment in player.play():
        done = teller.take(moment)
        if done is not None:
            yield done
    if teller.turn.decision:
        yield teller.turn


class _Teller:
    """Gathers events into turns."""

    def __init__(self, player: replay.Player, header: trace.Header) -> None:
        self.player = player
        self._k = header.settings.k
        phi = header.settings.phi
        if phi == "learnt" or not player.generation.policy.uses_phi:
            self._phi = float("inf")
        else:
            self._phi = phi
        self._above = 0
        """Open leaves above the learnt limit, until the latest decision."""
        self.turn = ShownTurn()
        self._began: float | None = None
        self._doubt = ""
        self._verified = 0

    def take(self, moment: replay.Moment) -> ShownTurn | None:
        """Takes an event in; returns the turn that it ends."""
        turn = self.turn
        match moment.event:
            case trace.Decided() as event:
                return self._decided(event, moment)
            case trace.Frame():
                turn.frames.append(moment.taken.kind if moment.taken else "")
                turn.fresh += moment.fresh
            case trace.Verified(tokens, entropies):
                turn.tokens = len(tokens)
                turn.entropy = entropies[-1]
                if self._verified:
                    turn.kept = f"{len(tokens) - 1} of {self._verified}"
                else:
                    turn.kept = ""
                left = any(isinstance(effect, Send) and effect.diverged for effect in moment.effects)
                if left:
                    self._doubt = "off the path"
                else:
                    self._doubt = "entropy > phi" if turn.entropy > self._phi else ""
            case WorkerChanged(_, "gone" | "declined"):
                turn.worker_gone = True
        return None

    def _decided(self, event: trace.Decided, moment: replay.Moment) -> ShownTurn | None:
        ended = self.turn if self.turn.decision else None
        if event.act.kind == "wait" and ended and ended.decision == "wait" and moment.same:
            return None

        learnt = self.player.generation.policy.learnt_phi
        if learnt is not None and learnt.above > self._above:
            self._above = learnt.above
            assert learnt.nats is not None, "no entropy is above a limit that is not there"
            self._doubt = f"entropy > {learnt.nats:.2f}, learnt"
        self._began = moment.now if self._began is None else self._began
        if event.act.kind == "verify":
            self._verified = len(event.act.nodes)
        else:
            self._verified = 0
        if event.size:
            hand = f"{event.size} in {self.player.tree.depth()}"
        else:
            hand = ""
        if moment.same:
            why = self._why(event.act)
        else:
            why = f"now it would be: {spell(moment.decided)}"
        before, fresh = ([], 0) if ended else (self.turn.frames, self.turn.fresh)
        at_ms = (moment.now - self._began) * 1000
        self.turn = ShownTurn(at_ms, hand, _short(event.act), why, frames=before, fresh=fresh, same=moment.same)
        return ended

    def _why(self, act: trace.Act) -> str:
        """The state of affairs that the decision answers."""
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

        return self._doubt or ("frame due" if act.kind == "wait" else "worker late")


def folded(turns_: Iterable[ShownTurn]) -> Iterator[ShownTurn]:
    """Plain steps in a row, for one reason and without a frame between them, as one turn."""
    last: ShownTurn | None = None
    for turn in turns_:
        if last is not None and _quiet(last) and _quiet(turn) and last.why == turn.why:
            last = replace(last, tokens=last.tokens + turn.tokens, entropy=turn.entropy, times=last.times + 1)
            continue
        if last is not None:
            yield last
        last = turn
    if last is not None:
        yield last


def tell(looked: Looked, console: Console) -> None:
    """Prints the story as a table."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("ms", "candidates", "decision", "why", "tokens", "kept", "entropy", "frames (new, stale)"):
        table.add_column(column, justify="right" if column in ("ms", "tokens", "entropy") else "left")
    for turn in folded(turns(looked.trace, looked.policies)):
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


def _quiet(turn: ShownTurn) -> bool:
    """A plain decoding step without anything else to show."""
    return turn.decision == "plain" and turn.same and not turn.frames and not turn.worker_gone


def _frames(turn: ShownTurn) -> str:
    """How many frames came, how many candidates they brought, and how many of them brought none."""
    count = len(turn.frames)
    stale = turn.frames.count("stale")
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
