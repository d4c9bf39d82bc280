"""The page's setting: off unless it is asked for, and not beside a stream that hides what drafts did."""

from __future__ import annotations

import pytest

from cloud_gateway.parts.live_picture import PART, PageSection
from cloud_gateway.process.config import schema
from edgespec.core.errors import ConfigError
from edgespec.shared.settings import parse


def test_the_page_is_off_unless_asked_for() -> None:
    settings = schema([PART])

    assert not settings().of(PageSection).ui
    assert parse("api.ui = true", settings, "x").of(PageSection).ui


def test_the_page_and_an_even_stream_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r'`api\.ui` is true, but must be false if `api\.stream` is "even"'):
        parse('[api]\nui = true\nstream = "even"', schema([PART]), "x")
