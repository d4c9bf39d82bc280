"""Function calling: the parameters `tools`, `tool_choice` and `parallel_tool_calls` of chats.

The chat template writes the functions into the prompt, calls in the model's text become `tool_calls` (docs/api.md,
"JSON and tools"), and a grammar forces those that have to be. That needs a compiler of grammars
(`cloud_gateway/api/grammars.py`); without one, only the model's own calls are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart

if TYPE_CHECKING:
    from cloud_gateway.api.parameters import Parameter


def _parameters() -> Sequence[Parameter]:
    from cloud_gateway.parts.function_calling.tools import Tools

    return (Tools(),)


PART = GatewayPart("function_calling", parameters=_parameters)
