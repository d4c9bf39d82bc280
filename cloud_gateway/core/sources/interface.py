"""What a source of candidates is asked and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from msgspec import Struct

ROOT = -1
"""In place of a suggestion's parent: the last committed token."""


class Suggestion(Struct, frozen=True, array_like=True):
    """One candidate. `parent`: index of an earlier suggestion of the same list, or ROOT."""

    parent: int
    token: int
    chance: float
    """Calibrated probability that the target chooses it where its parent was accepted, in (0, 1]."""


class DraftSource(Protocol):
    """One request's source. What it suggests changes how fast a completion comes, never its tokens."""

    name: str
    """By which `usage.edgespec.sources` reports it."""
    why: str | None
    """Why it suggested nothing when it was last asked; None if it did."""

    def committed(self, tokens: Sequence[int]) -> None:
        """Takes the next committed tokens: the prompt at first, then those of the completion."""

    def propose(self, room: int) -> Sequence[Suggestion]:
        """At most `room` candidates after the committed tokens, parents first; none if they would not pay."""

    def state(self) -> list[float]:
        """What the next completion of the same kind starts with (`SourceStart.learnt`); empty if nothing was learnt.

        A class that names this one as its base has this answer.
        """
        return []


@runtime_checkable
class StateSource(DraftSource, Protocol):
    """A source that computes with what the target keeps of its request, such as hidden states.

    The engine calls it on its thread, names the slot of the request, and books the time as the request's drafting. A
    fault ends the drafting of this request, and not the request.
    """

    @property
    def wanted(self) -> bool:
        """Whether it computes after the next pass; the engine asks that after each."""

    def prompt_read(self, slot: int) -> None:
        """The target has read a chunk of the request's prompt."""

    def path_kept(self, slot: int, token: int) -> None:
        """The target has kept the path of a pass, and has chosen `token` after it. Called before `committed`."""

    def charged(self, passes: float) -> None:
        """Called after `path_kept` with what it took, in passes of the target over one row."""


@dataclass(frozen=True, slots=True)
class SourceStart:
    """What a source of one request is made of."""

    prompt: Sequence[int]
    scope: bytes = b""
    """What is kept over completions may be used for requests of equal scope only: those of one API key. Empty: none."""
    learnt: Sequence[float] = ()
    """The `state` of the latest completion of the same kind that had this source; empty if there is none."""


class SourceMaker(Protocol):
    """Makes a source of one request, if the settings of the request name it."""

    def __call__(self, start: SourceStart) -> DraftSource:
        """Called on the event loop when the request is submitted. It may not wait, and does no model work.

        The source's methods are called on the engine's thread.
        """


SourceMakers = Mapping[str, SourceMaker]
"""By the name of the source, as in `policy.sources`."""


class RequestSource(Protocol):
    """A source that a request brings itself, by one of its parameters. It is asked beside the others."""

    @property
    def name(self) -> str:
        """Of the source, in `usage.edgespec.sources`."""

    def begin(self, prompt: Sequence[int]) -> DraftSource:
        """What one completion asks; called once for each, on the engine's thread or the event loop. No model work."""
