"""Parameters, policies and grammars of whatever parts there are, for tests that name no part."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_gateway.api.grammars import Grammars
from cloud_gateway.api.parameters import fields_of
from cloud_gateway.api.schema import ChatBody
from cloud_gateway.part import choices_of
from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import schema
from cloud_gateway.process.loading import make_grammars, parameters_of

PARAMETERS = tuple(parameters_of(all_parts()))
POLICIES = choices_of(all_parts()).policies


def is_served(parameter: str) -> bool:
    """Whether a part serves this parameter of chats."""
    return parameter in fields_of(PARAMETERS, ChatBody)


def needs(*names: str) -> pytest.MarkDecorator:
    """Skips a test if a parameter of chats or a policy of this name is in no part."""
    missing = [name for name in names if name not in POLICIES and not is_served(name)]
    return pytest.mark.skipif(bool(missing), reason=f"no part brings {', '.join(missing)}")


compares = needs("colocated", "colocated-tree", "rolling-k", "amusd")
"""Skips a test that compares with these policies, if they are in no part."""


def compiler(tokenizer: Any, vocab_size: int, eos: frozenset[int]) -> Grammars:
    """The compiler of grammars; skips the test if no part brings one."""
    grammars = make_grammars(schema(all_parts())(), tokenizer, vocab_size, eos)
    if grammars is None:
        pytest.skip("no part compiles grammars")
    return grammars
