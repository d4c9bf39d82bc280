"""What one API key may have under way, and how many tokens it may use, by the table [limits]; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from edgespec.core.errors import ClientError

QUEUE_LIMIT = 64
"""Completions that may wait for a slot."""


class ClientBounds(Struct, frozen=True, kw_only=True):
    """[limits]: bounds on each API key."""

    key_tokens_per_minute: Annotated[int, Meta(ge=0, le=2**53)] = 0


WINDOW_S = 60.0
MAX_BODY_BYTES = 16 * 2**20
"""Of one key's request bodies that are read or wait to be tokenised: four of the longest."""
BUSY_RETRY_S = 2.0
"""When to come back where an answer or a body has to end first; nobody knows when that is."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Of each API key. By default a key has all slots; it may take half of the queue."""

    answers: int
    """Answers under way at once, those included that wait for a slot."""
    body_bytes: int
    """Of request bodies that are read, or wait for their prompt to be tokenised."""
    tokens_per_minute: int
    """Of prompts and answers together; 0 for any number."""

    @staticmethod
    def of(clients: ClientBounds, slots: int) -> KeyLimits:
        """The configured limits, if the target has so many slots."""
        return KeyLimits(slots + QUEUE_LIMIT // 2, MAX_BODY_BYTES, clients.key_tokens_per_minute)


@dataclass(slots=True)
class _Account:
    answers: int = 0
    body_bytes: int = 0
    tokens: float = 0.0
    """That may be used now: a bucket that is full with a minute's tokens and fills up at their rate."""
    filled_at: float = 0.0


class Quotas:
    """The accounts of all keys that have been used; as many as there are keys."""

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self._accounts: dict[str, _Account] = {}

    def enter(self, key: str) -> Visit:
        """One request begins, as one answer until it says how many it wants. Raises ClientError 429."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(tokens=self.limits.tokens_per_minute, filled_at=-WINDOW_S)
        visit = Visit(account, self.limits)
        visit.expect_answers(1)
        return visit

    def headers(self, key: str, now: float) -> Mapping[str, str]:
        """OpenAI's `x-ratelimit-*` headers for the tokens of a key; none where they are not limited."""
        limit = self.limits.tokens_per_minute
        account = self._accounts.get(key)
        if not limit or account is None:
            return {}

        _fill(account, limit, now)
        return {
            "x-ratelimit-limit-tokens": str(limit),
            "x-ratelimit-remaining-tokens": str(max(0, int(account.tokens))),
            "x-ratelimit-reset-tokens": f"{(limit - account.tokens) * WINDOW_S / limit:.3f}s",
        }


class Visit:
    """What one request holds of its key's account, until `end`. All methods that take raise ClientError 429."""

    def __init__(self, account: _Account, limits: KeyLimits) -> None:
        self._account = account
        self._limits = limits
        self._answers = self._bytes = self._tokens = 0

    def expect_answers(self, answers: int) -> None:
        """The request asks for so many answers in all."""
        more = answers - self._answers
        if more > 0 and self._account.answers + more > self._limits.answers:
            most = self._limits.answers
            raise _limited(f"has {self._account.answers} of {most} completions under way", "wait for one to end")
        self._account.answers += more
        self._answers = answers

    def hold_bytes(self, size: int) -> None:
        """So many more bytes of the body have arrived."""
        if self._account.body_bytes + size > self._limits.body_bytes:
            raise _limited(f"has {self._account.body_bytes} bytes of request bodies waiting", "send fewer at once")
        self._account.body_bytes += size
        self._bytes += size

    def release_bytes(self) -> None:
        """The body is not needed any more."""
        self._account.body_bytes -= self._bytes
        self._bytes = 0

    def reserve_tokens(self, tokens: int, now: float) -> None:
        """The most tokens that the request may use, prompts included; what it does not use is given back at its end."""
        limit = self._limits.tokens_per_minute
        if not limit:
            return

        _fill(self._account, limit, now)
        if tokens > limit:
            raise _limited(f"may use {limit} tokens a minute, and this asks for up to {tokens}", "lower 'max_tokens'")
        if tokens > self._account.tokens:
            wait_s = (tokens - self._account.tokens) * WINDOW_S / limit
            raise _limited(f"may use {limit} tokens a minute", f"come back in {wait_s:.0f} s", wait_s)

        self._account.tokens -= tokens
        self._tokens += tokens

    def end(self, spent_tokens: int = 0) -> None:
        """The request is over.

        `spent_tokens`: those that were used. Where they are more than was reserved, the account may go below zero.
        """
        self._account.answers -= self._answers
        self._answers = 0
        self.release_bytes()
        if self._limits.tokens_per_minute:
            self._account.tokens += self._tokens - spent_tokens
        self._tokens = 0


def _fill(account: _Account, limit: int, now: float) -> None:
    passed_s = max(0.0, now - account.filled_at)
    account.tokens = min(float(limit), account.tokens + passed_s * limit / WINDOW_S)
    account.filled_at = now


def _limited(what: str, advice: str, retry_after_s: float = BUSY_RETRY_S) -> ClientError:
    return ClientError(
        f"Rate limit reached: this API key {what}; {advice}.",
        status=429,
        code="rate_limit_exceeded",
        retry_after_s=retry_after_s,
    )
