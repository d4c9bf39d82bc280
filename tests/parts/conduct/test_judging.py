"""Quarantine: its grounds, which no single API key can bring about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.parts.conduct.judging import MAX_FAULTS, MIN_CLAIM, WINDOW_S, Conduct

KEYS = ("alice", "bob", "carol")


def judged(conduct: Conduct, keys: tuple[str, ...], hits: int, requests: int = 3, now: float = 0.0) -> str | None:
    """The last verdict after requests of each key, in each of which the worker claimed 8 acceptances."""
    return [conduct.drafted("w", key, 8.0, hits, now) for _ in range(requests) for key in keys][-1]


@pytest.mark.claim("a-worthless-worker-is-refused-until-it-is-released")
def test_a_worker_that_is_worth_nothing_to_three_keys_is_quarantined() -> None:
    conduct = Conduct()
    assert judged(conduct, KEYS, hits=0, requests=2) is None
    assert conduct.drafted("w", "alice", 8, 0, 0.0) is conduct.drafted("w", "bob", 8, 0, 0.0) is None
    assert conduct.drafted("w", "carol", 8, 1, 0.0) == "3 of 3 API keys accepted 1% of what its probabilities claim"
    conduct.forget("w")
    assert conduct.drafted("w", "carol", 8, 0, 0.0) is None


def test_an_overconfident_worker_that_is_of_some_use_is_not() -> None:
    assert judged(Conduct(), KEYS, hits=2, requests=50) is None


@pytest.mark.claim("no-prompts-of-fewer-keys-than-must-agree-quarantine-anybody")
@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 5)), max_size=60), st.integers(1, 2))
def test_no_prompts_of_fewer_keys_than_must_agree_quarantine_anybody(
    requests: list[tuple[float, int]], keys: int
) -> None:
    conduct = Conduct()
    for n, (claimed, hits) in enumerate(requests):
        assert conduct.drafted("w", KEYS[n % keys], claimed, hits, float(n)) is None


def test_keys_that_a_worker_serves_well_outvote_as_many_that_it_does_not() -> None:
    conduct = Conduct()
    assert judged(conduct, ("dan", "erin", "frank"), hits=7) is None
    assert judged(conduct, KEYS, hits=0) is None
    assert judged(conduct, ("mallory",), hits=0)


def test_one_long_request_of_each_key_is_not_enough() -> None:
    conduct = Conduct()
    assert [conduct.drafted("w", key, 100 * MIN_CLAIM, 0, 0.0) for key in KEYS] == [None] * 3


def test_old_evidence_is_forgotten() -> None:
    conduct = Conduct()
    assert judged(conduct, KEYS, hits=0, requests=2) is None
    assert judged(conduct, KEYS, hits=0, requests=2, now=WINDOW_S + 1) is None
    assert judged(conduct, KEYS, hits=0, requests=1, now=WINDOW_S + 2)


def test_an_operator_who_trusts_every_key_needs_one_and_zero_is_never() -> None:
    assert judged(Conduct(1), ("alice",), hits=0)
    assert judged(Conduct(0), KEYS, hits=0, requests=50) is None
    assert [Conduct(0).fault("w", "malformed", None, 0.0) for _ in range(50)] == [None] * 50


def test_repeated_faults_lead_to_quarantine_and_rare_ones_do_not() -> None:
    conduct = Conduct()
    verdicts = [conduct.fault("w", "malformed", None, n * 60.0) for n in range(MAX_FAULTS)]
    assert verdicts == [None] * 5 + ["6 protocol faults within an hour, the last one malformed"]
    spaced = [conduct.fault("v", "malformed", None, n * WINDOW_S / 5) for n in range(50)]
    assert spaced == [None] * 50


@pytest.mark.claim("no-prompts-of-fewer-keys-than-must-agree-quarantine-anybody")
def test_faulty_trees_for_one_keys_requests_are_no_ground() -> None:
    conduct = Conduct()
    assert [conduct.fault("w", "shape-ids", b"mallory", n) for n in range(100)] == [None] * 100
    assert [conduct.fault("w", "shape-ids", b"eve", 100.0 + n) for n in range(100)] == [None] * 100
    assert [conduct.fault("w", "shape-ids", b"alice", 200.0 + n) is None for n in range(2)] == [True, False]


def test_a_fault_of_ours_and_a_suspended_machine_do_not_count() -> None:
    conduct = Conduct()
    assert [conduct.fault("w", reason, None, 0.0) for reason in ("fault", "slow") * 20] == [None] * 40
