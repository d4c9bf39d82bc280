"""WANSpec Algorithm 2, the worker's policy for one request, as a state machine without clock or model.

    repeat
        tree.prune(receive_validations())           commit()
        candidates = tree.most_probable(s)          candidates()
        output = step_draft_model(candidates)       (the caller's draft model)
        for p in output: top-b if entropy >= theta  record()
        send(results)                               delta()

The simulator and the daemon drive this same class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.core.drafting.settings import DEFAULTS
from edgespec.core.drafting.tree import WHOLE, Node, SpeculationTree
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.digests import Prefix
from edgespec.core.protocol.messages import (
    MAX_COST,
    MAX_DEPTH,
    MAX_NODES,
    ROOT,
    Tree,
)

WEIGHT = 0.3
"""Of the newest pass in the mean: the last five or so count, since a pass takes longer with more candidates."""
MAX_HOLD = 0.25
"""Longest time that nodes wait for others, as a share of a pass. Half as long costs a third more frames; twice as long
a hundredth of time where the pass is shorter than expected."""
MIN_LEVELS = 2
"""Levels below the last committed token that are sent at once: after a divergence the gateway may wait for them."""


class Rhythm:
    """When a gateway takes candidates, by the times in its commits: so nodes share frames and none comes late.

    A pass that has begun takes no more candidates, so what a worker drafts meanwhile is needed at its end. After a
    commit the gateway's next pass mostly begins at once, and takes about as long as those before. What is sent by
    `last_call` arrives while it still runs; later the gateway may be waiting, so nodes are sent as they come. Seconds
    on the worker's clock.
    """

    def __init__(self) -> None:
        self.pass_s = 0.0
        """Mean of the latest passes; 0 until the gateway has stated one, and then nothing waits."""
        self._at = -math.inf

    def committed(self, pass_s: float, now: float) -> None:
        """A commit arrived, with the duration of the pass that chose its tokens; 0 if the gateway states none."""
        self._at = now
        if self.pass_s:
            self.pass_s += WEIGHT * (pass_s - self.pass_s)
        else:
            self.pass_s = pass_s

    def last_call(self, rtt_s: float) -> float:
        """When a frame must leave to arrive before the pass that began with the last commit ends."""
        return self._at + self.pass_s - rtt_s

    def in_time(self, end: float, rtt_s: float) -> bool:
        """Whether what leaves at `end` arrives before the next pass begins; nothing is late while no pass is known."""
        return not self.pass_s or end <= self.last_call(rtt_s)

    def holds(self, since: float, end: float, rtt_s: float) -> bool:
        """Whether nodes that have waited since then may wait until `end`, when the next draft step is over."""
        return end <= min(since + MAX_HOLD * self.pass_s, self.last_call(rtt_s))


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draft model's distribution of the next token after one node.

    `tokens` and `costs` (nats of -log q): the best children, best first; `entropy` (nats): of the whole distribution.
    """

    tokens: Sequence[int]
    costs: Sequence[float]
    entropy: float


@dataclass(frozen=True, slots=True)
class DraftRule:
    """Algorithm 2's parameters, and the limits that the protocol sets."""

    branching: int = 2
    """b: children of a node whose entropy reaches `theta`."""
    theta: float = DEFAULTS.theta
    """Entropy (nats) below which a node gets one child only."""
    sequences: int = 4
    """s: leaves evaluated in one draft step."""
    max_depth: int = MAX_DEPTH
    max_nodes: int = 512
    """Nodes in the tree at which drafting waits for a commit."""


class Drafting:
    """The worker's state of one request: committed prefix, speculation tree, unsent nodes."""

    def __init__(self, request: int, epoch: int, prompt_len: int, rule: DraftRule) -> None:
        self.request = request
        self.epoch = epoch
        self.rule = rule
        self.prompt_len = prompt_len
        self.prefix = Prefix()
        self.tree = SpeculationTree(position=-1)
        self.rhythm = Rhythm()
        self.part = WHOLE
        """What it drafts of the tree, if other workers draft for the request too."""
        self.to_read: Sequence[int] = ()
        """The draft model's tokens of the last commit."""
        self._unsent: list[Node] = []
        self._unsent_since: float | None = None
        self._sent_to = -1
        """Deepest position that was sent and is still in the tree."""
        self._next_wire = 1

    @property
    def ready(self) -> bool:
        """Whether the whole prompt has arrived."""
        return len(self.prefix) >= self.prompt_len > 0

    def commit(
        self,
        prefix_len: int,
        tokens: Sequence[int],
        digest: bytes | None = None,
        *,
        chosen: bool = True,
    ) -> int:
        """Extends the committed prefix, prunes and re-roots; returns how many tokens the tree held.

        `chosen`: by the target, so that rules that learn do so from these tokens.

        Raises RemoteProtocolError (reason `prefix`) if the gateway's prefix differs from this one.
        """
        if prefix_len != len(self.prefix):
            raise RemoteProtocolError(
                "prefix",
                f"commit continues {prefix_len} tokens, but {len(self.prefix)} are known",
            )

        self.prefix.extend(tokens)
        self.to_read = tokens
        if digest is not None and digest != self.prefix.digest:
            raise RemoteProtocolError("prefix", f"the hash of {len(self.prefix)} committed tokens differs")

        matched = self.tree.advance(tokens)
        self._unsent = [node for node in self._unsent if node in self.tree and node is not self.tree.root]
        self._sent_to = max(
            (node.position for node in self.tree.nodes.values() if node.wire),
            default=-1,
        )
        return matched

    def candidates(self) -> list[Node]:
        """The leaves of the next draft step, most probable first; empty while nothing can be drafted."""
        if not self.ready or len(self.tree) >= self.rule.max_nodes:
            return []

        deepest = self.tree.root.position + self.rule.max_depth
        count = self.rule.sequences
        part = self.part
        leaves = self.tree.most_probable(count * part.count, deepest)
        if part.count == 1:
            return leaves
        return part.best(leaves, self.tree.root, count)

    def chance(self, leaf: Node) -> float:
        """Probability that a leaf's path is the target's, as far as the draft says."""
        return math.exp(self.tree.root.cost - leaf.cost)

    def paths(self, leaves: Sequence[Node]) -> list[tuple[int, ...]]:
        """The draft model's tokens of leaves, below the committed ones."""
        return [leaf.path(self.tree.root) for leaf in leaves]

    def record(self, candidates: Sequence[Node], proposals: Sequence[Proposal]) -> None:
        """Adds a step's results to the tree; those of nodes that a commit has pruned meanwhile are dropped."""
        for node, proposal in zip(candidates, proposals, strict=True):
            if node not in self.tree or node.expanded:
                continue

            node.expanded = True
            width = 1
            if proposal.entropy >= self.rule.theta:
                width = self.rule.branching
            for token, cost in zip(proposal.tokens[:width], proposal.costs[:width], strict=True):
                child = self.tree.append(node, token, cost, proposal.entropy)
                self._unsent.append(child)

    def due(self, now: float, end: float, rtt_s: float) -> bool:
        """Whether there are unsent nodes that should not wait until `end`, when another draft step is over.

        To be asked after each step: the first time counts as the beginning of their wait.
        """
        if not self._unsent:
            self._unsent_since = None
            return False

        if self._unsent_since is None:
            self._unsent_since = now
        sent_levels = self._sent_to - self.tree.root.position
        return sent_levels < MIN_LEVELS or not self.rhythm.holds(self._unsent_since, end, rtt_s)

    def delta(self) -> Tree | None:
        """The next frame of unsent nodes, parents before children; None when all are sent.

        Node ids on the wire are numbered when the frame is made, in the order sent: a pruned node never gets one.
        """
        if not self._unsent:
            return None

        batch = self._unsent[:MAX_NODES]
        self._unsent = self._unsent[MAX_NODES:]
        self._unsent_since = None
        self._sent_to = max(self._sent_to, *(node.position for node in batch))

        first = self._next_wire
        self._next_wire += len(batch)
        parents: list[int] = []
        costs: list[int] = []
        for wire, node in enumerate(batch, first):
            assert node.parent is not None
            node.wire = wire
            parents.append(ROOT if node.parent is self.tree.root else node.parent.wire)
            costs.append(millinats(node.cost - node.parent.cost))

        return Tree(
            request=self.request,
            epoch=self.epoch,
            prefix_len=len(self.prefix),
            prefix_hash=self.prefix.digest,
            first=first,
            parents=parents,
            tokens=[node.token for node in batch],
            costs=costs,
            entropies=[millinats(node.entropy, unknown=0) for node in batch],
        )


def millinats(nats: float, unknown: int = MAX_COST) -> int:
    """Whole millinats for the wire, 0 to `MAX_COST`; `unknown` for what is not a finite number."""
    if math.isfinite(nats):
        return min(max(round(nats * 1000), 0), MAX_COST)
    return unknown
