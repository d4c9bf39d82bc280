"""Modelled step times: what a pass of each model takes, by its rows, and what the gateway's own draft has to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloud_gateway.core.policies.policy import WIDTHS, Costs, catch_up_batch, draft_costs
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.tree import Node
from edgespec.core.numbers import interpolate

UNREAD = 90
"""Prompt tokens that a local draft has not evaluated when the target has: the median of the demo's prompts."""


class Curve:
    """Seconds of a pass by its rows: linear between the points given, level beyond them."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self._points = dict(points)
        self._known: dict[int, float] = {}

    def __call__(self, rows: int) -> float:
        """Seconds for this many rows."""
        if rows not in self._known:
            self._known[rows] = interpolate(self._points, rows)
        return self._known[rows]

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._points.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and self._points == other._points


@dataclass(frozen=True, slots=True)
class Steps:
    """Modelled step times. By default the local draft has to read the prompt, and reading costs what rows cost."""

    verify: Curve
    local: Curve | None
    """None: the gateway has no draft of its own."""
    worker: Curve
    catch_up_s: float | None = None
    """Per token that the local draft has not evaluated; None: as a row of its widest step. WANSpec's simulations
    take 0 (section 4.5: no measurable time)."""
    unread: int = UNREAD
    """Tokens of the prompt that it has not evaluated at time 0; one that drafts from the start reads them first."""
    leaves: int = WIDTHS[-1]
    """Most leaves of one local pass."""
    worker_noise: float = 0.0
    """Mean of the exponential share by which other jobs on its machine lengthen each step of the worker."""
    worker_says: Curve | None = None
    """The curve that the worker reports; None: its own."""
    worker_behind_s: float = 0.0
    """Seconds for which each commit waits at the worker before it drafts by it; round-trip samples do not show them."""

    @property
    def token_s(self) -> float:
        """Seconds to read one token."""
        if self.catch_up_s is not None or self.local is None:
            return self.catch_up_s or 0.0
        return self.local(WIDTHS[-1]) / WIDTHS[-1]


class LocalReading:
    """Keys and values that the local draft holds: committed tokens up to one, and single candidates below."""

    def __init__(self, steps: Steps, first_missing: int) -> None:
        """`first_missing`: position of the first prompt token that it has not evaluated."""
        self._steps = steps
        self._missing = first_missing
        self._evaluated: set[Node] = set()

    def backlog(self, tree: CandidateTree) -> int:
        """Committed tokens to read before a step at the root, which evaluates the last one anyway."""
        return max(tree.root.position - self._missing, 0)

    def costs(self, tree: CandidateTree) -> Costs:
        """What the policy is given."""
        steps = self._steps
        if steps.local is None:
            return Costs(steps.verify)
        points = tuple((leaves, steps.local(leaves)) for leaves in WIDTHS)
        return draft_costs(steps.verify, steps.local(1), self.backlog(tree), steps.token_s, steps.leaves, points)

    def read(self, tree: CandidateTree, tokens: int) -> float:
        """One catch-up batch of at most so many tokens (0: a full one); returns its seconds."""
        batch = catch_up_batch(self._steps.verify, self._steps.token_s)
        tokens = min(self.backlog(tree), tokens or batch, batch)
        self._missing += tokens
        return tokens * self._steps.token_s

    def draft(self, tree: CandidateTree, leaves: Sequence[Node]) -> float:
        """One step over these leaves; returns its seconds, with those for all that was missing above them."""
        local = self._steps.local
        assert local is not None, "a policy drafts where there is no draft"
        missing = self.backlog(tree)
        self._missing = max(self._missing, tree.root.position)
        above = {node for leaf in leaves for node in _above(leaf, tree.root)} - self._evaluated
        root_is_missing = self._missing == tree.root.position
        missing += len(above) + (root_is_missing and tree.root not in leaves)
        self._evaluated |= above.union(leaves)
        self._missing = tree.root.position + 1
        return local(len(leaves)) + missing * self._steps.token_s

    def committed(self, path: Sequence[Node], tree: CandidateTree) -> None:
        """The candidates of `path` were committed, the first one first; `tree` is the one after it."""
        for node in path:
            if node.position == self._missing and node in self._evaluated:
                self._missing += 1
        self._evaluated = {node for node in self._evaluated if node in tree.tree}


def _above(leaf: Node, root: Node) -> Sequence[Node]:
    """The candidates between the root and a leaf."""
    found = []
    node = leaf.parent
    while leaf is not root and node is not None and node is not root:
        found.append(node)
        node = node.parent
    return found
