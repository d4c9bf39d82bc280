"""The answer's reference, and the local passes it may spend.

The reference is what the gateway can always have without a worker: co-located speculative decoding with k = 2
(Leviathan et al., equation 1), or plain decoding where that is faster, both from measured curves.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloud_gateway.core.policies.actions import Costs


@dataclass(frozen=True, slots=True)
class Reference:
    """The better of co-located k = 2 and plain decoding, per token."""

    token_s: float
    passes: float
    """Of co-located k = 2 per token, also where plain decoding is faster."""
    plain_s: float = 0.0
    together_s: float = 0.0
    """Per token: plain decoding, and co-located k = 2 with reading its last draft token where that was accepted, which
    the closed form leaves out; the latter is infinite without a local draft."""

    @classmethod
    def of(cls, costs: Costs, match: float) -> Reference:
        """By the closed form, where all that share the passes do the same: each waits for the others' drafts, too."""
        tokens, all_of = 1 + match + match * match, 1 + costs.sharers
        together = (2 * all_of * costs.draft_s(1) + costs.verify_s(3 * all_of)) / tokens
        plain = costs.verify_s(all_of)
        read_s = match * match * costs.local_token_s / tokens
        return cls(min(plain, together), 2 / tokens, plain, together + read_s)


class Budget:
    """Allows local passes of up to `share` of the reference's: a price alone would buy them everywhere or nowhere."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._credit = 0.0

    @property
    def open(self) -> bool:
        """Whether a run of local passes may begin; it may then overdraw, so that runs are as long as they pay."""
        return self._credit > 0

    def earn(self, tokens: int, reference: Reference) -> None:
        """Tokens were emitted."""
        self._credit += tokens * self.share * reference.passes

    def spend(self) -> None:
        """A local pass is made."""
        self._credit -= 1
