"""Asks a request's sources for candidates, once after each commit, and puts these into its tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from cloud_gateway.core.policies.policy import Learnt, Policy
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.sources.interface import (
    ROOT,
    DraftSource,
    RequestSource,
    SourceMakers,
    SourceStart,
    StateSource,
    Suggestion,
)
from cloud_gateway.core.sources.lookup import Lookup
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.tree import Node

MAX_TAKEN = 2048
"""Tokens of a long prompt that a source takes at one decision: some milliseconds, while other requests wait."""
MAKERS: SourceMakers = {
    "lookup": lambda start: Lookup(len(start.prompt)),
}
"""The sources of the core, by name (`policies.settings.SOURCES`)."""


S = TypeVar("S", bound=DraftSource)
Asked = tuple[str, Sequence[Suggestion], int, str | None]
"""One source, what it suggested and how much of that the tree had room for, and why it suggested nothing."""


class Sources:
    def __init__(self, sources: Sequence[DraftSource], room: int) -> None:
        """`room`: candidates of one source after one commit."""
        self._sources = sources
        self._room = room
        self._taken = 0
        self.with_states = [source for source in sources if isinstance(source, StateSource)]
        """Those that the engine shows what the target keeps of the request."""

    def of(self, kind: type[S]) -> S | None:
        """The source of this type, for the part that brings it; None if the request does not use it."""
        return next((source for source in self._sources if isinstance(source, kind)), None)

    def state(self) -> Learnt:
        """What the sources have learnt, for the next completion of this kind, by their names."""
        states = {source.name: source.state() for source in self._sources}
        return {name: state for name, state in states.items() if state}

    def ask(self, tree: CandidateTree) -> Iterator[Asked]:
        """Asks one source at each step, so that a driver can time it; what it suggests is in the tree then. Nothing
        until more is committed. To be taken to its end."""
        tokens = tree.prefix.tokens[self._taken : self._taken + MAX_TAKEN]
        if not tokens:
            return

        self._taken += len(tokens)
        for source in self._sources:
            source.committed(tokens)
            if self._taken < len(tree.prefix):
                yield source.name, (), 0, None
            else:
                suggestions = source.propose(self._room)
                proposed = put(tree, source.name, suggestions)
                yield source.name, suggestions, proposed, source.why


def put(tree: CandidateTree, source: str, suggestions: Sequence[Suggestion]) -> int:
    """Puts suggestions into the tree, as far as it has room; how many."""
    nodes: list[Node | None] = []
    """Of the suggestions so far; None for those without room."""
    for suggestion in suggestions:
        above: Node | None = tree.root
        if suggestion.parent != ROOT:
            above = nodes[suggestion.parent]

        node = None
        if above is not None:
            node = tree.suggest(above, suggestion.token, suggestion.chance, source)
        nodes.append(node)

    return len(nodes) - nodes.count(None)


def make_sources(
    policy: Policy,
    settings: PolicySettings,
    prompt: Sequence[int],
    learnt: Learnt | None = None,
    brought: Sequence[RequestSource] = (),
    scope: bytes = b"",
    makers: SourceMakers = MAKERS,
) -> Sources | None:
    """The sources that the settings name, with what earlier completions of their kind taught them, and those that the
    request has brought; None if there are none, or if the policy uses none. `scope`: as in `SourceStart`.
    """
    if not policy.uses_sources or not (settings.sources or brought):
        return None

    made: list[DraftSource] = []
    for name in dict.fromkeys(settings.sources):
        taught = (learnt or {}).get(name, ())
        made.append(makers[name](SourceStart(prompt, scope, taught)))
    for source in brought:
        made.append(source.begin(prompt))

    return Sources(made, settings.verify_nodes)
