"""The seam of a request's parameter that a part serves: it brings a source of candidates for the completions.

A part lists its parameters in `GatewayPart.parameters`, by name. Such a parameter changes how fast a completion comes,
and never its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Raw

from cloud_gateway.core.sources.interface import RequestSource


class Counter(Protocol):
    """Counts something about one completion. On the event loop."""

    def emitted(self, token: int) -> None:
        """Called with each token of the completion, in its order."""

    def details(self) -> Mapping[str, int]:
        """Fields of `usage.completion_tokens_details`; those of several completions are added up."""


class Prepared(RequestSource, Protocol):
    """A parameter's value for one request: the source of candidates of its completions, and what counts them."""

    def counter(self) -> Counter:
        """A new one for each completion."""


class Parameter(Protocol):
    """A parameter of every endpoint that completes."""

    def read(self, value: Raw) -> Any:
        """Checks a value, which is not null, in time linear in its length. Called on any thread.

        Raises ClientError 400.
        """

    def prepare(self, value: Any, encode: Encode, context: int) -> Prepared:
        """Prepares a value that `read` has returned for the request's completions. Called on the thread that tokenises.

        `encode`: text to tokens. `context`: of the target, in tokens; no completion is longer.
        """


class Encode(Protocol):
    """Text to tokens (cloud_gateway/models/text.py)."""

    def __call__(self, text: str) -> Sequence[int]: ...
