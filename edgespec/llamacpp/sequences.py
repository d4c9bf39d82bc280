"""The mapping of tokens to sequences of llama.cpp, and the rows of one tree-shaped batch.

A request has a *trunk*, the sequence that holds its committed tokens, and a *tip* for every evaluated leaf: a sequence
that shares its ancestors' cells and has cells of its own below. Forking and dropping sequences moves no data.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from edgespec.core.drafting.ranking import TokenPath
from edgespec.core.numbers import common_prefix
from edgespec.llamacpp.context import Row


@dataclass(slots=True, eq=False)
class Tip:
    """A sequence that holds a request's committed tokens and the evaluated `path` below them."""

    id: int
    path: TokenPath
    used: int


@dataclass(slots=True, eq=False)
class Request:
    """`trunk` holds the first `evaluated` of `tokens`; tips exist only if that is all of them."""

    tokens: list[int]
    trunk: int
    evaluated: int = 0
    tips: list[Tip] = field(default_factory=list)
    scope: bytes = b""
    """Only requests of the same scope share tokens, and none if it is empty."""
    used_at: float = 0.0

    @property
    def owner(self) -> Hashable:
        """Whom its cells count for: its scope, or itself if that is empty."""
        return self.scope or id(self)

    @property
    def size(self) -> int:
        """Cells at most: those that it shares count, too."""
        return self.evaluated + sum(len(tip.path) for tip in self.tips)

    def shared_with(self, other: Request) -> int:
        """How many of the other's first tokens are evaluated here, and may be shared with it."""
        if not self.scope or self.scope != other.scope:
            return 0

        return common_prefix(self.tokens[: self.evaluated], other.tokens)


@dataclass(slots=True, eq=False)
class Leaf:
    """One path of a step. The first `held` positions are evaluated; `source` (None: the trunk) shares them."""

    path: TokenPath
    held: int
    source: Tip | None
    repeated: bool
    """Evaluated in an earlier step; only its logits are needed again."""
    sequence: int = -1
    """Where it is evaluated."""


def add_rows(
    rows: list[Row],
    r: Request,
    leaves: Sequence[Leaf],
) -> dict[TokenPath, int]:
    """Appends the rows that a step has to evaluate, ancestors first; returns the index of each leaf's row.

    A row belongs to the sequences of all leaves below it, and a pending committed token to the trunk as well.
    llama.cpp requires that sequences with a common row hold the same positions before it. They do, since whether an
    ancestor was evaluated does not depend on the leaf.
    """
    base = len(r.tokens)
    members: dict[tuple[int, TokenPath], list[int]] = {}
    for position in range(r.evaluated, base):
        members[position, ()] = [r.trunk]

    for leaf in leaves:
        for position in range(leaf.held, base + len(leaf.path)):
            depth = max(position - base + 1, 0)
            sequences = members.setdefault((position, leaf.path[:depth]), [])
            if leaf.sequence not in sequences:
                sequences.append(leaf.sequence)

    leaf_paths = {leaf.path for leaf in leaves}
    row_of: dict[TokenPath, int] = {}
    for (position, path), sequences in sorted(members.items()):
        is_leaf = position >= base - 1 and path in leaf_paths
        if is_leaf:
            row_of[path] = len(rows)

        if path:
            token = path[-1]
        else:
            token = r.tokens[position]
        rows.append(Row(token, position, sequences, is_leaf))

    return row_of
