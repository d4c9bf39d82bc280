"""Tests that make requests with all parameters, some of which parts bring: without these they are skipped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_every_parameter = pytest.mark.skipif(
    find_spec("cloud_gateway.parts.log_probabilities") is None, reason="the part of log-probabilities is removed"
)
