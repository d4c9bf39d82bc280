"""Draft models at the gateway, behind one Protocol.

Public, by module:

- `gguf`: `LocalDraft`
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Protocol

from cloud_gateway.core.policies.policy import Points
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked
from edgespec.shared.threads import ThreadRule


class DraftModel(Protocol):
    """A draft model at the gateway, with KV catch-up in limited batches (WANSpec 4.5); on the engine's thread."""

    passes: int
    """Forward passes made so far, catch-up batches included."""
    leaves: int
    """Maximum number of paths of one request in a step."""
    together: int
    """The same of all requests in a step."""

    @property
    def step_s(self) -> float:
        """Seconds of one draft step with nothing to catch up, as measured."""

    @property
    def points(self) -> Points:
        """The step's measured curve over the leaves of all its requests; empty where only `step_s` is known."""

    @property
    def token_s(self) -> float:
        """Seconds per token of a catch-up batch, as measured."""

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> object:
        """Begins a request with its committed tokens. Does no model work.

        It may reuse KV entries of requests of the same `scope`, and reuses none where that is empty.
        """

    def commit(self, request: Hashable, tokens: Sequence[int]) -> object:
        """The committed tokens grow. Does no model work."""

    def backlog(self, request: Hashable) -> int:
        """Committed tokens whose keys and values are missing; at least 1, the one that the next step evaluates."""

    def catch_up(self, request: Hashable, limit: int) -> object:
        """Evaluates at most `limit` tokens of the backlog, except its last one, in one batch."""

    def draft(self, asked: Sequence[Asked]) -> Sequence[Sequence[Proposal]]:
        """One step over the leaves of all these requests, named by their tokens below the committed ones; catches up
        first. An error concerns any of them.
        """

    def close(self, request: Hashable) -> object:
        """Ends a request."""


class IdlingDraft(DraftModel, Protocol):
    """A draft model as it is loaded: it also uses the time in which no request waits."""

    def idle(self) -> None:
        """Called on the engine's thread if no request waits; it may measure, for some milliseconds."""


class MakeLocalDraft(Protocol):
    """Loads a local draft from a GGUF file: `LocalDraft`, or one for a target with another tokenizer."""

    def __call__(
        self,
        path: Path,
        *,
        context: int,
        requests: int,
        threads: int,
        thread_rule: ThreadRule,
        gpu_layers: int,
        target_vocab_size: int,
    ) -> IdlingDraft:
        """Called once, in a thread. `context`: KV cells that `requests` share. Raises ModelError, ConfigError."""
