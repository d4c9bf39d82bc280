"""The committed tokens of a request and the SHA-256 that names any prefix of them.

A token id is hashed as four bytes, little-endian, so the hash of a prefix extends in one small update.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence


def prefix_hash(tokens: Iterable[int]) -> bytes:
    """SHA-256 over the token ids, each as four little-endian bytes. The slow twin of `Prefix`."""
    return hashlib.sha256(b"".join(t.to_bytes(4, "little") for t in tokens)).digest()


class Prefix:
    """Committed tokens that only grow, with the hash of every length at which an `extend` ended."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self._sha = hashlib.sha256()
        self._digests: dict[int, bytes] = {}
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def digest(self) -> bytes:
        """Hash of the whole prefix (32 bytes)."""
        return self._digests[len(self.tokens)]

    def digest_at(self, length: int) -> bytes:
        """Hash of the first `length` tokens, cached or computed."""
        return self._digests.get(length) or prefix_hash(self.tokens[:length])

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens and stores the hash of the new length."""
        packed = array("I", tokens)
        self._sha.update(packed.tobytes())
        self.tokens.extend(tokens)
        self._digests[len(self.tokens)] = self._sha.digest()

    def matches(self, length: int, digest: bytes) -> bool:
        """Whether `digest` names a prefix that ended at `length` after some `extend`."""
        return self._digests.get(length) == digest
