"""One request of an engine, and the worker that drafts for it with what that has brought."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.tree import Node
from edgespec.core.protocol.messages import MAX_COST, MAX_DEPTH, Sampling
from edgespec_vllm.messages import PASS_NODES, Chain, FromLink, Opened, nodes_of

WINDOW = 64
WORTH = 1 / 8
"""Of so many candidates verified for a request at least this share must be accepted: with four requests on a CPU a row
that is refused takes 12 to 17 % of a token's time (dev/decisions/130-vllm.md)."""


class Engine(Protocol):
    """The connection of one engine."""

    drafts: int

    def send(self, message: FromLink) -> None:
        """Writes a message, or drops a `Chain` while the engine does not read."""


@dataclass(slots=True)
class Assignment:
    """A worker that drafts for a request, and what it has brought."""

    worker: str
    name: str
    """The worker's, for people."""
    epoch: int
    prompt_len: int = 0
    """Tokens that it was sent first."""
    opened: bool = False
    """It was sent these tokens."""
    has_read: bool = False
    """It has sent a useful frame, so it has read them."""
    frames: int = 0
    late: int = 0
    """Those of which nothing could be used."""
    tokens: int = 0
    """Tokens that the engine reported since it was assigned."""
    verified_tokens: int = 0
    """Candidates that vLLM verified."""
    rounds: int = 0
    """Passes since it has read the prompt, or since it was opened if it has not."""
    accepted: int = 0
    """Candidates that vLLM accepted."""
    idle: int = 0
    """Passes in a row without an accepted candidate."""
    window_drafted: int = 0
    window_accepted: int = 0
    """Candidates verified and accepted since WINDOW of them were last judged."""
    committed_at: float | None = None

    def received(self, *, useful: bool) -> None:
        """Counts a frame; the first useful one shows that the prompt is read."""
        self.frames += 1
        self.late += not useful
        if useful and not self.has_read:
            self.has_read = True
            self.rounds = 0
            self.idle = 0

    def verified(self, drafted: int, accepted: int) -> None:
        """Counts candidates that vLLM has verified."""
        self.accepted += accepted
        self.verified_tokens += drafted
        self.window_drafted += drafted
        self.window_accepted += accepted

    def passed(self, accepted: int) -> None:
        """Counts a pass of the target that accepted so many candidates."""
        self.rounds += 1
        self.idle = 0 if accepted else self.idle + 1

    def refused(self) -> bool:
        """Whether the latest WINDOW candidates cost more than they saved; then the next ones are counted."""
        drafted = self.window_drafted
        accepted = self.window_accepted
        if drafted < WINDOW:
            return False

        self.window_drafted = 0
        self.window_accepted = 0
        return accepted < WORTH * drafted


class Stream:
    """One request of an engine; `id`: on the wire to workers."""

    def __init__(self, id: int, engine: Engine, opened: Opened, key: str) -> None:  # noqa: A002
        self.id = id
        self.key = key
        """The API key, as the ledger has it while the request runs."""
        self.engine = engine
        self.number = opened.request
        self.groups = frozenset(opened.groups)
        self.scope = opened.scope
        self.tag = opened.tag
        """The request's, for the ledger."""
        self.sampling = Sampling(min(opened.temperature, 2.0), min(opened.top_k, 2**20), opened.top_p)
        self.tree: CandidateTree | None = None
        """None until the first tokens have come."""
        self.have = 0
        self.complete = False
        """`tree` has all that was committed when the engine last sent some."""
        self.drafted = 0
        self.accepted = 0
        self.credited = ""
        """Name of the worker that had the tokens when vLLM last sent some: what is verified after that is its own."""
        self.assignment: Assignment | None = None
        self.epoch = 0
        self.tried: set[str] = set()
        self.sent = 0
        """The last node of the tree that was sent."""
        self.room = PASS_NODES
        """Nodes that may still be sent before the engine's next pass."""

    def chains(self) -> Iterator[Chain]:
        """The paths to the leaves that came since the last call, as far as there is room in this pass."""
        assert self.tree is not None
        tree = self.tree.tree
        root = self.tree.root
        for number in range(self.sent + 1, tree.next_id):
            leaf = tree.nodes.get(number)
            if leaf is None or leaf.children:
                self.sent = number
                continue
            if self.room <= 0:
                return  # the rest is sent after the next commit, unless that prunes it

            self.sent = number
            path: list[Node] = []
            while leaf is not root and leaf is not None:
                path.append(leaf)
                leaf = leaf.parent
            path = path[::-1][:MAX_DEPTH]
            costs = [round(1000 * (node.cost - node.parent.cost)) for node in path if node.parent is not None]
            bounded = [min(max(cost, 0), MAX_COST) for cost in costs]
            chain = Chain(self.number, root.position + 1, [node.token for node in path], bounded)
            self.room -= nodes_of(chain)
            yield chain
