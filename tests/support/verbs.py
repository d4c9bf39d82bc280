"""Tests of verbs that a part brings."""

from __future__ import annotations

import pytest

from edgespec.__main__ import build_parser


def has_verb(name: str) -> bool:
    """Whether `edgespec` has this verb."""
    actions = build_parser()._subparsers
    assert actions is not None
    return any(name in action.choices for action in actions._group_actions if isinstance(action.choices, dict))


def needs_verb(name: str) -> pytest.MarkDecorator:
    """Skips a test if no part brings this verb, which both programs have."""
    return pytest.mark.skipif(not has_verb(name), reason=f"no part brings `{name}`")
