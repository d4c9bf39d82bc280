"""What verification takes from a request and gives for its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgespec.core.errors import EdgespecError

if TYPE_CHECKING:  # the configuration imports this file, and must not wait for numpy
    import numpy as np
    from numpy.typing import NDArray


class ConstraintError(EdgespecError):
    """This answer's constraint leaves no token; it ends with an error, and no other answer does."""


class Constraint(Protocol):
    """What one answer may say, token by token (a grammar's place). Its own object for each answer."""

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        """A mask over the vocabulary of what may follow the committed tokens and then `path`; None allows all.

        Raises ConstraintError where nothing may. Waits where it is not `ready`.
        """

    def ready(self, path: Sequence[int], wake: Callable[[], None] | None = None) -> bool:
        """Whether the mask after `path` is there; where not, `wake` is called once it is, on any thread."""
        return True

    def ahead(self, paths: Sequence[Sequence[int]]) -> None:
        """These paths are about to be asked for: one may begin with their masks."""
        return

    def allowed(self, path: Sequence[int]) -> int:
        """How many tokens of `path`, one by one, may follow the committed ones, the end of the answer aside."""

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        """Tokens that are all but certain to come after the committed ones and then `path`; none where it is broken."""

    def committed(self, tokens: Sequence[int]) -> None:
        """The answer has grown by these tokens. Raises ConstraintError where they break it."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probabilities of the target's own distribution: raw logits, temperature 1, no constraint."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens with theirs, best first; of equals the lower token first."""
