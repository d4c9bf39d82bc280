"""Log lines that a client can cause: one a minute for each kind."""

from __future__ import annotations

import logging

import pytest

from edgespec.shared.log_text import LimitedLog

LOG = logging.getLogger("tests.log_text")


@pytest.mark.claim("each-kind-has-one-line-a-minute-and-the-rest-is-counted")
def test_each_kind_has_one_line_a_minute_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    lines = LimitedLog(LOG, clock=lambda: now[0])
    for now[0] in (0.0, 1.0, 59.9, 60.1):
        lines.warning("stale", "an old frame")
    lines.warning("padding", "bad padding")
    assert [record.getMessage() for record in caplog.records] == [
        "an old frame",
        "an old frame (and 2 more like it)",
        "bad padding",
    ]
