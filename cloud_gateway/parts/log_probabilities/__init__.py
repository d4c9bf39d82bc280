"""Log-probabilities: the parameters `logprobs` and `top_logprobs` of chat and text completions.

The target's own, of each token and of the most probable ones beside it: raw logits, temperature 1, no constraint. With
them clients see how sure the model was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart

if TYPE_CHECKING:
    from cloud_gateway.api.parameters import Parameter


def _parameters() -> Sequence[Parameter]:
    from cloud_gateway.parts.log_probabilities.parameter import LogProbabilities

    return (LogProbabilities(),)


PART = GatewayPart("log_probabilities", parameters=_parameters)
