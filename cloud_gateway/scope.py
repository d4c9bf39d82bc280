"""Whose prefixes a request may continue: the cache scope of its API key, unlinkable across gateways and workers."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from cloud_gateway.auth import Key

SCOPE_BYTES = 16
"""Two keys of one gateway meet in a scope by chance with a probability of 2^-128."""


class CacheScopes:
    """Scopes of one gateway process.

    The secret is never stored: the target's and the local draft's caches end with the process, and what workers still
    keep of an earlier one becomes useless. So no worker can link a key's requests over restarts.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, key: Key) -> bytes:
        """The scope of a key: its own, or that of its cache group."""
        name = f"group {key.cache_group}" if key.cache_group else f"key {key.id}"
        return hmac.digest(self._secret, name.encode(), "sha256")[:SCOPE_BYTES]


def scope_for(worker: str, scope: bytes) -> bytes:
    """The scope as one worker is told it, so that two workers cannot find out that they serve the same key."""
    return (
        hashlib.sha256(b"edgespec/1 cache scope\0" + scope + worker.encode()).digest()[:SCOPE_BYTES] if scope else b""
    )
