"""When the worker's next useful level is due, and how likely."""

from __future__ import annotations

import pytest

from cloud_gateway.core.policies.arrival import Expected, Timeline
from cloud_gateway.core.policies.entropy import PathOdds
from cloud_gateway.core.policies.policy import LinkView
from cloud_gateway.core.verify.candidates import Merged

R = 0.020
TD = 0.004
LINK = LinkView(R, R, TD, ready=True)


def streaming() -> Timeline:
    """A worker that reached position 12 at time 1."""
    timeline = Timeline()
    timeline.start(10, 0.9)
    timeline.frame(Merged(fresh=1, reached=12), 1.0)
    return timeline


def due(timeline: Timeline, position: int, now: float, link: LinkView = LINK) -> Expected:
    expected = timeline.expect(position, link, now)
    assert expected is not None
    return expected


def test_a_streaming_worker_brings_one_level_a_step() -> None:
    assert due(streaming(), 14, 1.0) == (1.0, pytest.approx(1.0 + 2 * TD))


def test_a_miss_costs_a_round_trip_from_the_commit() -> None:
    timeline = streaming()
    timeline.committed(12, 2, 1.01, on_path=False)
    assert timeline.diverged and timeline.divergences == 1
    assert due(timeline, 13, 1.01).at_s == pytest.approx(1.01 + R + 1.5 * TD)


def test_frames_on_the_old_path_do_not_end_a_loss() -> None:
    timeline = streaming()
    timeline.committed(12, 2, 1.01, on_path=False)
    timeline.frame(Merged(stale=3, reached=11), 1.012)
    assert timeline.diverged
    timeline.frame(Merged(fresh=3, reached=13), 1.034)
    assert not timeline.diverged and timeline.frontier == 13


def test_a_frame_without_the_committed_token_shows_a_divergence() -> None:
    timeline = streaming()
    timeline.committed(13, 3, 1.002, on_path=True)
    timeline.committed(14, 0, 1.012, on_path=True)
    timeline.frame(Merged(stale=4, reached=-1, diverged_at=12), 1.015)
    assert timeline.diverged
    assert due(timeline, 15, 1.015).at_s == pytest.approx(1.002 + R + 2.5 * TD)


def open_leaf(entropy: float) -> Timeline:
    """A worker that reached position 12, after a commit at time 1.002 of a token at 13 that nobody had proposed."""
    timeline = streaming()
    timeline.committed(13, 2, 1.002, on_path=True)
    timeline.left_open(13, entropy, LINK, 1.002)
    return timeline


@pytest.mark.parametrize("entropy", [0.1, 1.0, 4.0])
def test_after_an_open_leaf_the_entropy_says_how_likely_it_is_there(entropy: float) -> None:
    assert due(open_leaf(entropy), 14, 1.002) == (pytest.approx(PathOdds().chance(entropy)), pytest.approx(1.002 + TD))


def test_a_frame_that_goes_on_from_the_token_shows_the_path() -> None:
    timeline = open_leaf(2.0)
    before = timeline.odds.chance(2.0)
    timeline.frame(Merged(fresh=2, reached=14), 1.004)
    assert timeline.open is None and not timeline.diverged and timeline.odds.chance(2.0) > before


def test_a_frame_with_others_in_its_place_shows_a_divergence() -> None:
    timeline = open_leaf(2.0)
    before = timeline.odds.chance(2.0)
    timeline.frame(Merged(stale=3, diverged_at=12), 1.004)
    assert timeline.open is None and timeline.diverged and timeline.divergences == 1
    assert timeline.odds.chance(2.0) < before
    assert due(timeline, 14, 1.004).at_s == pytest.approx(1.002 + R + 1.5 * TD)


def test_a_frame_that_may_answer_the_commit_counts_as_a_divergence() -> None:
    early = open_leaf(2.0)
    late = open_leaf(2.0)
    early.frame(Merged(fresh=1, reached=14), 1.002 + R)
    late.frame(Merged(fresh=1, reached=14), 1.002 + R + TD)
    assert early.odds.chance(2.0) > PathOdds().chance(2.0) > late.odds.chance(2.0)
    assert not late.diverged, "it has been put right"


def test_frames_of_earlier_positions_leave_the_question_open() -> None:
    timeline = open_leaf(2.0)
    timeline.frame(Merged(known=1, reached=12), 1.003)
    assert timeline.open is not None and timeline.odds.state() == PathOdds().state()


def test_each_token_not_yet_sent_makes_the_frames_more_doubtful() -> None:
    timeline = streaming()
    timeline.committed(15, 5, 1.001, on_path=True)
    assert due(timeline, 16, 1.001).chance == pytest.approx(timeline.stay_rate**3)


def test_a_worker_that_tries_other_branches_has_a_slower_pace() -> None:
    timeline = streaming()
    for i in range(50):
        timeline.frame(Merged(fresh=1, reached=13 + i), 1.0 + 3 * TD * (i + 1))
    assert timeline.level_s(LINK) == pytest.approx(3 * TD, rel=0.05)


def test_hits_and_divergences_are_counted_where_they_were_seen() -> None:
    timeline = streaming()
    assert timeline.hits == 0, "nothing was committed yet"
    timeline.committed(13, 2, 1.002, on_path=True)
    assert (timeline.hits, timeline.divergences) == (2, 0), "the last token was not among the candidates"
    timeline.frame(Merged(fresh=1, reached=14), 1.004)
    assert (timeline.hits, timeline.divergences) == (3, 0)
    timeline.committed(16, 0, 1.010, on_path=False)
    assert (timeline.hits, timeline.divergences) == (3, 1)


@pytest.mark.parametrize(("base", "hits"), [(12, 2.0), (13, 1.0), (14, 0.0)])
def test_tokens_that_a_worker_was_sent_are_no_hits_of_its_own(base: int, hits: float) -> None:
    timeline = streaming()
    timeline.committed(14, 0, 1.002, on_path=True)
    timeline.frame(Merged(fresh=1, reached=15, base=base), 1.004)
    assert timeline.hits == hits


def test_a_worker_that_keeps_diverging_is_counted_each_time() -> None:
    """Plain steps go on meanwhile: each commit that reaches it finds it off the path again."""
    timeline = Timeline()
    timeline.start(10, 0.9)
    for i in range(5):
        timeline.committed(11 + i, 0, 1.0 + i, on_path=True)
        timeline.frame(Merged(stale=4, diverged_at=10 + i), 1.5 + i)
    assert timeline.divergences == 5


def test_an_overdue_frame_is_waited_for_two_levels_more() -> None:
    timeline = streaming()
    timeline.committed(13, 3, 1.002, on_path=True)
    for now in (1.009, 1.015):
        assert due(timeline, 14, now) == (pytest.approx(timeline.stay_rate), pytest.approx(1.008 + 2 * TD))
    assert due(timeline, 14, 1.017) == (1.0, pytest.approx(1.002 + R + 1.5 * TD)), "the commit corrects the worker"


def test_a_worker_that_stalls_is_not_expected_for_ever() -> None:
    timeline = streaming()
    timeline.committed(13, 3, 1.002, on_path=True)
    corrected = 1.002 + R + 1.5 * TD
    assert due(timeline, 14, corrected + TD) == (1.0, pytest.approx(corrected + 2 * TD))
    assert timeline.expect(14, LINK, corrected + 3 * TD) is None


def test_on_a_link_with_jitter_a_late_frame_is_expected_for_longer() -> None:
    assert streaming().expect(13, LINK, 1.0 + 4 * TD) is None
    assert due(streaming(), 13, 1.0 + 4 * TD, LinkView(R, 3 * R, TD, True)).at_s == pytest.approx(1.0 + TD + 2 * R)
