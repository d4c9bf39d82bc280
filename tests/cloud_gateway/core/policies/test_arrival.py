"""When the worker's next useful level is due."""

from __future__ import annotations

import pytest

from cloud_gateway.core.policies.actions import LinkView
from cloud_gateway.core.policies.arrival import Timeline
from cloud_gateway.core.verify.candidates import Merged

R, TD = 0.020, 0.004
LINK = LinkView(R, R, TD, ready=True)


def streaming() -> Timeline:
    """A worker that reached position 12 at time 1."""
    timeline = Timeline()
    timeline.start(10, 0.9)
    timeline.frame(Merged(fresh=1, prefix_len=11, reached=12), 1.0)
    return timeline


def test_a_worker_that_just_got_a_commit_answers_a_round_trip_later() -> None:
    timeline = Timeline()
    timeline.start(10, 1.0)
    assert timeline.due(11, LINK, 1.0) == pytest.approx(1.0 + R + 1.5 * TD)


def test_a_streaming_worker_brings_one_level_a_step() -> None:
    assert streaming().due(14, LINK, 1.0) == pytest.approx(1.0 + 2 * TD)


def test_a_miss_costs_a_round_trip_from_the_commit() -> None:
    timeline = streaming()
    timeline.committed(12, 1.01, on_path=False)
    assert timeline.lost and timeline.losses == 1
    assert timeline.due(13, LINK, 1.01) == pytest.approx(1.01 + R + 1.5 * TD)


def test_frames_on_the_old_path_do_not_end_a_loss() -> None:
    timeline = streaming()
    timeline.committed(12, 1.01, on_path=False)
    timeline.frame(Merged(stale=3, prefix_len=11, reached=11), 1.012)
    assert timeline.lost
    timeline.frame(Merged(fresh=3, prefix_len=13, reached=13), 1.034)
    assert not timeline.lost and timeline.frontier == 13


def test_a_frame_without_the_committed_token_shows_a_divergence() -> None:
    timeline = streaming()
    timeline.committed(13, 1.002, on_path=True)
    timeline.committed(14, 1.012, on_path=True)
    timeline.frame(Merged(stale=4, prefix_len=12, reached=-1, lost_at=12), 1.015)
    assert timeline.lost
    assert timeline.due(15, LINK, 1.015) == pytest.approx(1.002 + R + 2.5 * TD)


def test_what_is_overdue_is_expected_later_and_later() -> None:
    timeline = streaming()
    assert timeline.due(13, LINK, 1.030) >= 1.030 + 0.9 * (0.030 - TD)
