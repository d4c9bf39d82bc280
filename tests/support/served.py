"""Parameters and grammars of whatever parts there are, for tests that name none."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_gateway.api.grammars import Grammars
from cloud_gateway.api.parameters import fields_of
from cloud_gateway.api.schema import ChatBody
from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import schema
from cloud_gateway.process.loading import make_grammars, parameters_of

PARAMETERS = tuple(parameters_of(all_parts()))


def is_served(parameter: str) -> bool:
    """Whether a part serves this parameter of chats."""
    return parameter in fields_of(PARAMETERS, ChatBody)


def needs(parameter: str) -> pytest.MarkDecorator:
    """Skips a test if no part serves this parameter of chats."""
    return pytest.mark.skipif(not is_served(parameter), reason=f"no part serves {parameter!r}")


def compiler(tokenizer: Any, vocab_size: int, eos: frozenset[int]) -> Grammars:
    """The compiler of grammars; skips the test if no part brings one."""
    grammars = make_grammars(schema(all_parts())(), tokenizer, vocab_size, eos)
    if grammars is None:
        pytest.skip("no part compiles grammars")
    return grammars
