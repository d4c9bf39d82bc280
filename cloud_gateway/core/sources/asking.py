"""Asks a request's sources for candidates, once after each commit, and puts these into its tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cloud_gateway.core.policies.settings import PolicySettings, SourceName
from cloud_gateway.core.sources.answers import Answers
from cloud_gateway.core.sources.heads import HeadSource
from cloud_gateway.core.sources.interface import ROOT, DraftSource, Suggestion
from cloud_gateway.core.sources.lookup import Lookup
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.tree import Node

Counts = dict[str, dict[str, Any]]
"""`Usage.sources` of the request."""
MAX_TAKEN = 2048
"""Tokens of a long prompt that a source takes at one decision: some milliseconds, while other requests wait."""
MAKERS: dict[SourceName, Callable[[Sequence[int]], DraftSource]] = {
    "lookup": lambda prompt: Lookup(len(prompt)),
    "answers": Answers,
    "medusa": lambda prompt: HeadSource("medusa"),
    "eagle": lambda prompt: HeadSource("eagle"),
}
"""Sources by name, from the prompt."""


class Sources:
    """The sources of one request."""

    def __init__(self, sources: Sequence[DraftSource], room: int) -> None:
        """`room`: candidates of one source after one commit."""
        self._sources, self._room, self._taken = sources, room, 0

    @property
    def answers(self) -> Answers | None:
        """The source that other answers to the same prompt are given to, where it is among them."""
        return next((source for source in self._sources if isinstance(source, Answers)), None)

    @property
    def heads(self) -> Sequence[HeadSource]:
        """The sources that are given what heads expect."""
        return [source for source in self._sources if isinstance(source, HeadSource)]

    def ask(self, tree: CandidateTree, counts: Counts) -> Sequence[tuple[str, Sequence[Suggestion]]]:
        """What each source has suggested, by name; it is in the tree then. Nothing until more is committed."""
        tokens = tree.prefix.tokens[self._taken : self._taken + MAX_TAKEN]
        if not tokens:
            return ()
        self._taken += len(tokens)
        asked: list[tuple[str, Sequence[Suggestion]]] = []
        for source in self._sources:
            source.committed(tokens)
            if self._taken < len(tree.prefix):
                continue
            suggestions = source.propose(self._room)
            put(tree, counts, source.name, suggestions)
            counts[source.name]["why"] = source.why
            if suggestions:
                asked.append((source.name, suggestions))
        return asked


def put(tree: CandidateTree, counts: Counts, source: str, suggestions: Sequence[Suggestion]) -> None:
    """Puts suggestions into the tree, as far as it has room, and counts them."""
    nodes: list[Node | None] = []
    for parent, token, chance in ((one.parent, one.token, one.chance) for one in suggestions):
        above = tree.root if parent == ROOT else nodes[parent]
        nodes.append(None if above is None else tree.suggest(above, token, chance, source))
    count = counts.setdefault(source, {"proposed": 0, "verified": 0, "accepted": 0, "why": None})
    count["proposed"] += len(nodes) - nodes.count(None)


def make(settings: PolicySettings, prompt: Sequence[int]) -> Sources | None:
    """The sources that the settings name, for policy `adaptive`: the other policies are as their papers have them."""
    if settings.name != "adaptive" or not settings.sources:
        return None
    return Sources([MAKERS[name](prompt) for name in dict.fromkeys(settings.sources)], settings.verify_nodes)
