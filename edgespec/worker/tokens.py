"""The tokens in which the worker drafts: those of its draft model, or those of a target with another tokenizer.

A gateway accepts a worker whose tokens are the target's. The core's `TargetTokens` has the draft model's tokens only,
so a gateway with another target refuses it for good; a part may bring one that drafts in other tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edgespec.core.drafting.best_first import BestFirst, MakeDrafting, MakeRanker, rank_by_target
from edgespec.core.errors import TokenizerMismatch
from edgespec.core.protocol.handshake import WorkerIdentity
from edgespec.llamacpp.drafter import Drafter
from edgespec.shared.paired import PairedGateway
from edgespec.worker.config import WorkerSettings
from edgespec.worker.link import Addresses, Link


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """The tokens of a worker's messages, and the state of a request that is drafted in them."""

    tokenizer_digest: bytes
    vocab_size: int
    make: MakeDrafting = BestFirst
    rank: MakeRanker = rank_by_target


@dataclass(frozen=True, slots=True)
class RefusedTokens:
    """A gateway's refusal of the worker's tokenizer, and the means to link with that gateway for another purpose."""

    error: TokenizerMismatch
    """Its text has both digests."""
    gateway: PairedGateway
    me: WorkerIdentity
    addresses: Addresses
    reached: Callable[[Link], None]
    """To be called with each link, which may have proven a rotated identity of the gateway."""
    explain: Callable[[str], None]
    """Shows the worker's admin why it cannot draft for this gateway, by a sentence."""


class TargetTokens:
    """Chooses the tokens in which a worker drafts. This one, the core's, has those of the draft model only.

    The service, and `edgespec doctor`, make one when the draft model is loaded.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def at_start(self) -> DraftTokens:
        """The tokens of the first link. Called once; it may read files. Raises ModelError, ConfigError."""
        return DraftTokens(self._drafter.tokenizer_digest, self._drafter.vocab_size)

    async def after(self, refusal: RefusedTokens) -> DraftTokens:
        """The tokens of the next link, after a gateway has refused the latest ones.

        The service calls it on the event loop, and links again when it returns; it may wait. Raises TokenizerMismatch,
        which ends the worker, and what `keep_linked` raises.
        """
        raise refusal.error


class MakeTargetTokens(Protocol):
    """Makes what chooses the tokens. Raises nothing, and does no work."""

    def __call__(self, settings: WorkerSettings, drafter: Drafter) -> TargetTokens:
        """`drafter`: the loaded draft model, of which only the tokenizer and its size are read."""
