"""The seams of verification: a constraint on the tokens, and a reader of the rows that they are chosen from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from edgespec.core.errors import EdgespecError

if TYPE_CHECKING:  # the configuration imports this file, and must not wait for numpy
    import numpy as np
    from numpy.typing import NDArray


class ConstraintError(EdgespecError):
    """This answer's constraint leaves no token; it ends with an error, and no other answer does."""


class Constraint(Protocol):
    """The seam of what may follow: one completion's place in its form, token by token.

    The API makes one for each completion, of the grammar that the request asks for (cloud_gateway/api/grammars.py), and
    stores it in the `GenerationRequest`. From then on the engine alone calls it, on its thread: `ready` before a pass,
    `allowed` and `forced` for the candidates of one, the mask for each row of the target that is chosen from, and
    `committed` after it. It must not hold that thread for longer than its own allowance, so what takes long runs on a
    thread of its own, and `ready` says when it is done. It may leave out tokens, and so change a text; `allowed` and
    `forced` only help to draft, and never do.
    """

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


class RowReader(Protocol):
    """The seam of what a client gets beside the tokens of a completion: reads the target's rows.

    A parameter of the request brings it (`Option.annotator`, cloud_gateway/api/parameters.py), and it travels in the
    `GenerationRequest`. Completions of one request share it. No row is fetched for a request without one.
    """

    def read(self, logits: NDArray[np.floating], token: int) -> object:
        """The value that goes to the API with a token. The engine calls it on its thread, once for each token that the
        client gets, in their order.

        `logits`: the row after which `token` was chosen, raw, shape [vocab_size]; it may not be changed. Takes time
        linear in it.
        """
