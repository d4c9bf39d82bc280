"""Predicted outputs: the parameter `prediction` of OpenAI's API, with any engine of this gateway.

A client that expects most of the answer, such as a file with an edit, sends it along. The text becomes a source of
candidates, `prediction`, which policy `adaptive` uses beside its others. It is found again after each divergence, and
costs next to nothing if it is wrong (docs/predicted-outputs.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart

if TYPE_CHECKING:
    from cloud_gateway.api.parameters import Parameter


def _parameters() -> Sequence[Parameter]:
    from cloud_gateway.parts.predicted_outputs.parameter import Prediction

    return (Prediction(),)


PART = GatewayPart("predicted_outputs", parameters=_parameters)
