"""How a worker begins a request: the state for its rule, and the order of its draft tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgespec.core.drafting.algorithm2 import Drafting, DraftRule
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.protocol.messages import Open


@dataclass(slots=True)
class Starts:
    """The rule, and what all requests have taught about the pair of models."""

    rule: DraftRule
    translated: Callable[..., Drafting] | None = None
    """Makes a request's state if the draft model has other tokens (`Translator.drafting`); None: they are the same."""
    _spread: Spread = field(default_factory=Spread)
    _calibrator: Calibrator = field(default_factory=Calibrator)

    def drafting(self, message: Open) -> Drafting:
        """The state of a request, with its first tokens."""
        of = message.request, message.epoch, message.prompt_len
        if not isinstance(self.rule, BestFirstRule):
            made = Drafting(*of, self.rule)
        elif self.translated is not None:
            made = self.translated(*of, self.rule, calibrator=self._calibrator)
        else:
            made = BestFirst(*of, self.rule, calibrator=self._calibrator)
        made.commit(0, message.tokens)
        return made

    def ranker(self, message: Open, drafting: Drafting) -> Ranker:
        """Orders draft tokens by the probability that the target takes them, not by the draft's own (ranking.py)."""
        ranked_by, read, noise = drafting.ranked_by(message.sampling), drafting.to_read, drafting.noise
        return Ranker(ranked_by, read, spread=self._spread, resolved=True, noise=noise)
