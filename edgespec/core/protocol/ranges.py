"""The allowed ranges of numbers, for the chat API and the wire (docs/api.md, docs/protocol.md).

Arithmetic on parameters within these ranges and on any finite float32 logits stays finite in float64; the fuzz gate
tests this (`python -m tools.fuzz`). A value outside is refused where it enters: as 400 by the API, as `malformed` on
the wire. Not-a-number and infinities are in no range.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Meta


@dataclass(frozen=True, slots=True)
class Range:
    """All numbers from `low` to `high`, both included; `low` itself not, if `above` is set."""

    low: float
    high: float
    above: bool = False

    @property
    def meta(self) -> Meta:
        """The same for msgspec."""
        if self.above:
            return Meta(gt=self.low, le=self.high)
        return Meta(ge=self.low, le=self.high)

    def __contains__(self, value: float) -> bool:
        if self.above and value == self.low:
            return False
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if self.above:
            return f"above {self.low:g}, to {self.high:g}"
        return f"from {_shown(self.low)} to {_shown(self.high)}"


def _shown(bound: float) -> str:
    if isinstance(bound, int):
        return str(bound)
    return f"{bound:g}"


MAX_ID = 2**31 - 1
"""Largest token id, and so the largest count of tokens: ids are signed 32-bit integers in torch and llama.cpp."""

TEMPERATURE = Range(0, 2)
"""OpenAI's. Below `processing.GREEDY_BELOW` it means greedy, so that nothing is divided by a subnormal number."""
TOP_P = Range(0, 1, above=True)
MIN_P = Range(0, 1)
TOP_K = Range(0, MAX_ID)
"""0: all tokens."""
REPETITION_PENALTY = Range(0.01, 10)
"""Logits are divided or multiplied by it: 1e-310 made them infinite. Beyond a factor of ten it bans tokens, which
`logit_bias` is for."""
PENALTY = Range(-2, 2)
"""Presence and frequency; OpenAI's."""
BIAS = Range(-100, 100)
"""OpenAI's: -100 bans a token, 100 forces it."""
MAX_BIASES = 1024

SAMPLING = {
    "temperature": TEMPERATURE,
    "top_p": TOP_P,
    "top_k": TOP_K,
    "min_p": MIN_P,
    "repetition_penalty": REPETITION_PENALTY,
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
    "logit_bias": BIAS,
}
"""By the name that both the API and the wire use. The API also takes `top_k` = -1, which means 0."""
