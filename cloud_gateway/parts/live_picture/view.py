"""One request as JSON events for the page: what was drafted by whom, what the target made of it, and when.

`alone` makes a past request one HTML file: the page with its style, its modules and the events inside.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec

from cloud_gateway.core.policies.policy import Action, Costs, Draft, LinkView, Verify
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import Usage
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.candidates import COMMITTED_SPAN
from cloud_gateway.part import PastRequest
from edgespec.core.protocol.messages import ROOT, Tree

Emit = Callable[[dict[str, Any]], None]
"""Takes one event: `kind`, `run` (the completion), `at` (seconds of the gateway's clock) and what the kind needs."""
Name = Callable[[str, str], str]
"""What the page may call a worker of this id and name."""
SUMS = ("prompt_tokens", "completion_tokens", "rounds", "undrafted_rounds", "local_draft_passes", "fallbacks")
REASONS = ("why_off", "why", "why_not_local")


@dataclass(frozen=True, slots=True)
class Spelling:
    """Tokens as text: each by itself, and those of the completion one after another."""

    one: Callable[[int], str]
    next: Callable[[int], str]


class View(events.Listener):
    """Shows one request."""

    def __init__(self, generation: Generation, spelling: Spelling, name: Name, emit: Emit, now: float = 0.0) -> None:
        self._generation = generation
        self._spelling = spelling
        self._name = name
        self._to = emit
        self._began = self._rtt = self._root_cost = 0.0
        self._plain = 1.0
        self._named: dict[str, str] = {}
        self._drafts = _Late()
        request = generation.request
        policy = generation.policy
        self._emit(
            "begin", now, prompt=len(request.tokens), policy=policy.name, id=request.id,
            off=generation.usage.why_off,
        )  # fmt: skip

    def _emit(self, kind: str, at: float, **found: Any) -> None:
        self._to({"kind": kind, "run": self._generation.id, "at": round(at, 6), **found})

    # --- events.Listener -----------------------------------------------------------------------------------------

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        match event:
            case events.Admitted():
                self._emit("slot", now)
            case events.Read(tokens, seconds):
                self._emit("read", now, count=tokens, took=round(seconds, 6))
            case events.WorkerChanged(_, "none", why):
                self._emit("off", now, why=why)
            case events.WorkerChanged(worker, why, name):
                self._emit("worker", now, worker=self._worker(worker, name), what=why)
            case events.FrameArrived(worker, frame):
                self._frame(worker, frame, effects, now)
            case events.Drafted(_, proposals):
                count = sum(len(one.tokens) for one in proposals)
                self._emit("draft", now, since=round(self._began, 6), count=count)
            case events.Failed(_, what):
                self._emit("fault", now, why=what)
            case events.Verified(tree):
                self._pass(tree, effects, now)
        for effect in effects:
            if isinstance(effect, events.Finished):
                self._emit("end", now, finish=effect.finish, usage=_usage(self._generation.usage))

    def decided(self, link: LinkView | None, costs: Costs, now: float, action: Action) -> None:
        change = self._generation.policy.change
        if change is not None:
            self._emit("guard", now, mode=change[0], why=change[1])
        self._rtt = 0.0 if link is None else link.rtt_s
        if isinstance(action, Verify | Draft):
            self._began = now
        if isinstance(action, Verify):
            shared = costs.other_rows
            rows = len(action.nodes) + 1
            usual = costs.verify_s(rows + shared)
            self._plain = min(1.0, costs.verify_s(1 + shared) / usual) if usual else 1.0
            self._root_cost = self._generation.tree.root.cost

    # --- what is shown -------------------------------------------------------------------------------------------

    def _worker(self, worker: str, name: str = "") -> str:
        if worker not in self._named:
            self._named[worker] = self._name(worker, name)
        return self._named[worker]

    def _by(self, owner: str) -> dict[str, str]:
        """Who proposed a candidate; a worker has another field than a source, so that no name can pass for one."""
        if owner in self._named:
            return {"worker": self._named[owner]}
        return {"source": owner}

    def _frame(self, worker: str, frame: Tree, effects: Sequence[events.Effect], now: float) -> None:
        taken = next((effect.kind for effect in effects if isinstance(effect, events.FrameTaken)), "stale")
        late = self._drafts.take(worker, frame, self._generation) if taken != "rejected" else ()
        shown = [[position, self._spelling.one(token), right] for position, token, right in late]
        found = {"worker": self._worker(worker), "rtt": round(self._rtt, 6), "count": len(frame.tokens)}
        self._emit("frame", now, taken=taken, late=shown, **found)

    def _pass(self, tree: FlatTree, effects: Sequence[events.Effect], now: float) -> None:
        chosen = next((effect for effect in effects if isinstance(effect, events.Chosen)), None)
        if chosen is None:  # its constraint failed
            return

        accepted = set(chosen.rows)
        nodes = []
        for row, (node, parent) in enumerate(zip(tree.nodes, tree.parents[1:], strict=True), 1):
            fate = "accepted" if row in accepted else "refused" if parent in accepted else "below"
            before = tree.nodes[parent - 1].cost if parent else self._root_cost
            chance = round(min(1.0, math.exp(before - node.cost)), 3)
            text = self._spelling.one(node.token)
            nodes.append({"parent": parent, "text": text, "fate": fate, "chance": chance, **self._by(node.owner)})
        tokens = [{"text": self._spelling.next(token), "source": "target"} for token in chosen.tokens]
        for token, row in zip(tokens, chosen.rows[1:]):
            del token["source"]
            token |= self._by(tree.nodes[row - 1].owner)
        first = len(self._generation.tree.prefix) - len(chosen.tokens)
        self._emit(
            "pass", now, since=round(self._began, 6), first=first, root=self._spelling.one(tree.tokens[0]),
            nodes=nodes, tokens=tokens, rtt=round(self._rtt, 6), plain=round(self._plain * (now - self._began), 6),
        )  # fmt: skip


class _Late:
    """Finds the draft tokens that arrive after the target has chosen a token for their position."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, int, int], tuple[int, int, int]] = {}
        """By worker, epoch and number: position, token and the parent's number."""

    def take(self, worker: str, frame: Tree, generation: Generation) -> list[tuple[int, int, bool]]:
        """Position and token of each whose parent was committed, and whether the target chose it too."""
        prefix = generation.tree.prefix
        found = []
        for number, (parent, token) in enumerate(zip(frame.parents, frame.tokens), frame.first):
            above = self._nodes.get((worker, frame.epoch, parent))
            if parent != ROOT and above is None:
                continue
            position = frame.prefix_len if above is None else above[0] + 1
            self._nodes[worker, frame.epoch, number] = position, token, parent
            if position < len(prefix) and self._committed(worker, frame.epoch, parent, prefix.tokens):
                found.append((position, token, token == prefix.tokens[position]))
        oldest = len(prefix) - COMMITTED_SPAN
        if len(self._nodes) > 16 * COMMITTED_SPAN:
            self._nodes = {number: node for number, node in self._nodes.items() if node[0] >= oldest}
        return found

    def _committed(self, worker: str, epoch: int, number: int, tokens: Sequence[int]) -> bool:
        """Whether the target chose this node and all that lead to it."""
        while number != ROOT:
            node = self._nodes.get((worker, epoch, number))
            if node is None:
                return True  # so old that it was dropped
            position, token, number = node
            if position >= len(tokens) or tokens[position] != token:
                return False

        return True


def _usage(usage: Usage) -> Mapping[str, Any]:
    shown = {name: getattr(usage, name) for name in (*SUMS, *REASONS)}
    shown["phi"] = None if usage.phi is None else msgspec.structs.asdict(usage.phi)
    return shown | {"drafted": dict(usage.drafted), "accepted": dict(usage.accepted), "decode": usage.times.decode_s}


NUMBERS = Spelling(lambda token: f"#{token}", lambda token: f"#{token}\u2009")
"""For the tokens of a past request, whose texts are not kept."""


def played(request: PastRequest) -> dict[str, Any]:
    """A past request as its events. Raises EdgespecError."""
    found: list[dict[str, Any]] = []

    def listen(generation: Generation) -> View:
        return View(generation, NUMBERS, lambda worker, name: name or worker[:8], found.append)

    request.play(listen)
    about = {"made_at": request.made_at, "policy": request.policy, "salted": request.salted}
    return {"header": about, "events": found}


STATIC = resources.files(__name__.rpartition(".")[0]) / "static"
MODULES = ("text.js", "markdown.js", "model.js", "net.js", "player.js", "runs.js", "strip.js", "tree.js", "app.js")
"""Each after those that it imports. Joined they are one module, so their top-level names are all different."""


def alone(found: Mapping[str, Any]) -> str:
    """The file that shows `view.played`'s events without a gateway and without a network."""
    style = _text("style.css")
    script = "\n".join(map(_plain, MODULES))
    events = msgspec.json.encode(found).decode().replace("<", "\\u003c")
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
        f'<script type="application/json" id="trace">{events}</script>\n<script type="module">{script}</script>'
    )
    return re.sub(r'<link rel="icon".*</script>', lambda _: head, _text("index.html"), count=1, flags=re.DOTALL)


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _plain(name: str) -> str:
    """A module's text without what ties it to the other files."""
    text = re.sub(r"^import .*\n", "", _text(name), flags=re.MULTILINE)
    return re.sub(r"^export (?=\w)", "", text, flags=re.MULTILINE)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
