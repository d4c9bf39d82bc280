"""A worker that knows the future: it evaluates the target's own path and nothing else.

What it cannot do is name a token that the draft does not have among its best `branching`, nor outrun the network: so it
bounds what any ordering of the same drafts could reach.
"""

from __future__ import annotations

from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.tree import Node
from edgespec.lab.sim.process import TokenProcess


class OracleDrafting(BestFirst):
    """Best-first drafting whose order is the truth."""

    def __init__(self, prompt_len: int, rule: BestFirstRule, process: TokenProcess) -> None:
        super().__init__(1, 1, prompt_len, rule)
        self._process = process

    def candidates(self) -> list[Node]:
        """The end of the target's path in the tree, unless the path has left the tree."""
        node, origin = self.tree.root, self.prompt_len - 1
        deepest = node.position + self.rule.max_depth
        while node.expanded:
            following = node.children.get(self._process.targets[node.position - origin + 1])
            if following is None:
                return []
            node = following
        return [node] if self.ready and node.position < deepest else []
