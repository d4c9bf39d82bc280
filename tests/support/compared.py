"""Tests that compare with policies of a part, which can be removed: without it they are skipped."""

from __future__ import annotations

import pytest

from edgespec_lab.choices import gateway_choices

COMPARED = frozenset({"colocated", "colocated-tree", "rolling-k", "amusd"})
compares = pytest.mark.skipif(
    not gateway_choices().policies.keys() >= COMPARED, reason="the part of the policies to compare with is removed"
)
