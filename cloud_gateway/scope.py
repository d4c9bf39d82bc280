"""Cache scopes: requests reuse cached prefixes of their own scope only. Scopes of one API key differ between gateways
and between workers, so that they cannot be linked."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from cloud_gateway.auth import Key

SCOPE_BYTES = 16
"""Two keys of one gateway get the same scope with a probability of 2^-128."""


class CacheScopes:
    """Scopes of one gateway process.

    The secret is never stored: the caches of the target and the local draft end with the process, and prefixes that
    workers still hold are not reused after a restart. So no worker can link a key's requests over restarts.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, key: Key) -> bytes:
        """The scope of a key: its own, or that of its cache group."""
        name = f"group {key.cache_group}" if key.cache_group else f"key {key.id}"
        return hmac.digest(self._secret, name.encode(), "sha256")[:SCOPE_BYTES]


def scope_for(worker: str, scope: bytes) -> bytes:
    """The scope as it is sent to one worker, so that two workers cannot find out that they serve the same key."""
    return (
        hashlib.sha256(b"edgespec/1 cache scope\0" + scope + worker.encode()).digest()[:SCOPE_BYTES] if scope else b""
    )
