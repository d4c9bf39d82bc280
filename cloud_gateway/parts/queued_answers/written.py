"""One answer that a worker writes for a request that waits: its tokens so far, and the messages that lead the worker.

On the wire an answer is a request of its own. What the worker drafts is merged and checked as candidates are. Then the
most probable path is committed, so that the worker goes on after it. No pass of the target chose these tokens, so the
commits state none, and the worker learns nothing from them (docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from cloud_gateway.core.requests.assignment import opening
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.protocol.messages import Close, Commit, Open, Sampling, Tree

EPOCH = 1
"""Each asking is a request of its own."""
NODES_PER_TOKEN = 64
"""Most candidates of its worker for each token of the longest answer. A best-first tree takes about thirty. With more
the answer ends, so that the memory for their ids is bounded."""


class WrittenAnswer:
    """Its tokens so far, and the messages that lead its worker."""

    def __init__(self, number: int, prompt: Sequence[int], limit: int, stops: Set[int]) -> None:
        """`number`: of the request on the wire; `limit`: most tokens; `stops`: tokens that end it."""
        self.number = number
        self._limit = limit
        self._stops = stops
        self._tree = CandidateTree(prompt)
        self._prompt_len = len(prompt)
        self._nodes = 0

    @property
    def tokens(self) -> Sequence[int]:
        """As far as it is committed."""
        return self._tree.prefix.tokens[self._prompt_len :]

    @property
    def done(self) -> bool:
        """Whether it is as long as it gets."""
        stopped = self._room < self._limit and self._tree.root.token in self._stops
        return stopped or not self._room or self._nodes >= NODES_PER_TOKEN * self._limit

    @property
    def _room(self) -> int:
        """Tokens that it may still get."""
        return self._limit + self._prompt_len - len(self._tree.prefix)

    def open(self, sampling: Sampling, scope: bytes) -> Iterator[Open | Commit]:
        """What the worker is sent first; `scope`: of its prefix cache."""
        return opening(self.number, EPOCH, self._tree.prefix, sampling, scope)

    def merge(self, frame: Tree, worker: str) -> Merged:
        """Takes in a frame; one of another epoch is stale. Raises RemoteProtocolError as `CandidateTree.merge` does."""
        if frame.epoch != EPOCH:
            return Merged(stale=len(frame.tokens))

        self._nodes += len(frame.tokens)
        return self._tree.merge(EPOCH, frame, worker)

    def advance(self) -> Commit | None:
        """Commits the most probable path of what has arrived; None where nothing new is on it."""
        if self.done:
            return None
        path = self._tree.best_leaf().path(self._tree.root)[: self._room]
        end = next((at for at, token in enumerate(path, 1) if token in self._stops), len(path))
        if not end:
            return None

        start = len(self._tree.prefix)
        piece = list(path[:end])
        self._tree.advance(piece)
        return Commit(self.number, EPOCH, start, piece, self._tree.prefix.digest)

    def close(self, why: str) -> Close:
        """Sent when it is not wanted any more."""
        return Close(self.number, EPOCH, why)
