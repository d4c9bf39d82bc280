"""Structured output: completions whose text has a form, by the parameters `response_format` and `structured_outputs`.

A JSON schema, a regular expression, a list of choices or a grammar becomes a constraint on the tokens (docs/api.md,
"JSON and tools"). The part also brings the compiler of grammars, which other parts use by the seam
`cloud_gateway/api/grammars.py`: without it no parameter can give a completion a form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cloud_gateway.part import GatewayPart

if TYPE_CHECKING:
    from cloud_gateway.api.grammars import Grammars
    from cloud_gateway.api.parameters import Parameter


class LLGuidance:
    """The `GrammarEngine`."""

    def version(self) -> str:
        from cloud_gateway.parts.structured_output.grammar import library_version

        return library_version()

    def make(self, tokenizer: Any, vocab_size: int, eos: frozenset[int]) -> Grammars:
        from cloud_gateway.parts.structured_output.grammar import GuidedGrammars

        return GuidedGrammars(tokenizer, vocab_size, eos)


def _parameters() -> Sequence[Parameter]:
    from cloud_gateway.parts.structured_output.parameter import Forms

    return (Forms(),)


PART = GatewayPart("structured_output", parameters=_parameters, grammars=LLGuidance())
