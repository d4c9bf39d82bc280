"""Tokens a minute of each API key, as a bucket: full with a minute's tokens, and filled up at their rate; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cloud_gateway.api.admission import TokenUse
from cloud_gateway.auth import Key
from cloud_gateway.core.limits.visits import rate_limited

WINDOW_S = 60.0
TOKENISED_PER_TOKEN = 10
"""Tokens that `/tokenize` makes for one of a quota. Reading a token costs the target a thousand times what making it
costs, but clients that count before each request should not pay for their prompts twice."""


@dataclass(slots=True)
class KeyBucket:
    """The quota of one key."""

    tokens: float
    """That may be used now. Below zero after a request that used more than it had reserved."""
    filled_at: float
    """When `tokens` was right."""


class Reserved:
    """The `Reservation` of one request."""

    def __init__(self, bucket: KeyBucket, tokens: int) -> None:
        self._bucket = bucket
        self._tokens = tokens

    def end(self, used: TokenUse) -> None:
        self._bucket.tokens += self._tokens - price(used)


class MinuteQuota:
    """The `KeyAdmission`. It has a bucket for each key that was used."""

    def __init__(self, tokens_per_minute: int) -> None:
        self._limit = tokens_per_minute
        self._buckets: dict[str, KeyBucket] = {}

    def reserve(self, key: Key, most: TokenUse, now: float) -> Reserved:
        tokens = price(most)
        limit = self._limit
        if tokens > limit:
            what = f"may use {limit} tokens a minute, and this asks for up to {tokens}"
            raise rate_limited(what, "lower 'max_tokens'", WINDOW_S)

        bucket = self._filled(key, now)
        if tokens > bucket.tokens:
            wait_s = (tokens - bucket.tokens) * WINDOW_S / limit
            raise rate_limited(f"may use {limit} tokens a minute", f"come back in {wait_s:.0f} s", wait_s)

        bucket.tokens -= tokens
        return Reserved(bucket, tokens)

    def headers(self, key: Key, now: float) -> Mapping[str, str]:
        """OpenAI's `x-ratelimit-*` headers for tokens."""
        limit = self._limit
        tokens = self._filled(key, now).tokens
        return {
            "x-ratelimit-limit-tokens": str(limit),
            "x-ratelimit-remaining-tokens": str(max(0, int(tokens))),
            "x-ratelimit-reset-tokens": f"{(limit - tokens) * WINDOW_S / limit:.3f}s",
        }

    def _filled(self, key: Key, now: float) -> KeyBucket:
        """The key's bucket with what has come since it was last looked at."""
        full = float(self._limit)
        bucket = self._buckets.setdefault(key.id, KeyBucket(full, now))

        passed_s = max(0.0, now - bucket.filled_at)
        bucket.tokens = min(full, bucket.tokens + passed_s * full / WINDOW_S)
        bucket.filled_at = now
        return bucket


def price(use: TokenUse) -> int:
    """Tokens of a quota that a request takes."""
    return use.computed + math.ceil(use.tokenised / TOKENISED_PER_TOKEN)
