"""The usage object: sums over choices, and shares."""

from dataclasses import fields

import msgspec

from cloud_gateway.api.usage import SourceFigures, combined, offload_share, unnamed, usage_extension, worker_share
from cloud_gateway.core.policies.policy import LearntLimit
from cloud_gateway.core.requests.request import Times, Usage


def test_counts_and_times_of_choices_are_summed_and_zero_counts_stay() -> None:
    one = Usage(3, 10, rounds=4, drafted={"worker": 9}, accepted={"worker": 6}, why_off=None, times=Times(decode_s=0.5))
    two = Usage(
        3, 20, rounds=5, drafted={"local": 2}, accepted={"local": 1}, why_off="no worker", times=Times(decode_s=0.25)
    )
    total = combined([one, two])
    assert (total.completion_tokens, total.rounds, total.times.decode_s) == (30, 9, 0.75)
    assert (total.drafted, total.accepted) == ({"worker": 9, "local": 2}, {"worker": 6, "local": 1})
    assert total.frames == {"received": 0, "used": 0, "stale": 0, "rejected": 0}
    assert (total.policy, total.why_off) == ("plain", "no worker")
    assert (one.rounds, one.drafted) == (4, {"worker": 9}), "the parts stay as they are"


def test_every_field_of_usage_is_summed_or_kept() -> None:
    usage = Usage()
    for field in fields(Usage):
        value = getattr(usage, field.name)
        setattr(usage, field.name, 2 if isinstance(value, int | float) else value)
    total = combined([usage, usage, usage])
    for field in fields(Usage):
        value = getattr(usage, field.name)
        assert getattr(total, field.name) == (6 if isinstance(value, int | float) else value)


def test_shares_are_null_where_they_would_mean_nothing() -> None:
    nothing = Usage(rounds=5)
    assert worker_share(nothing) is offload_share(nothing) is None
    assert worker_share(Usage(accepted={"worker": 3, "local": 1})) == 0.75
    assert worker_share(Usage(accepted={"local": 4})) == 0.0
    drafted = {"worker": 20}
    assert offload_share(Usage(rounds=10, drafted=drafted)) == 1.0
    assert offload_share(Usage(rounds=10, drafted=drafted, local_draft_passes=5)) == 0.75
    assert offload_share(Usage(rounds=10, drafted=drafted, local_draft_passes=20)) == 0.0
    assert offload_share(Usage(rounds=10, drafted=drafted, local_draft_passes=90)) == 0.0, "never negative"


def test_candidates_without_a_draft_model_are_no_offloading() -> None:
    assert offload_share(Usage(rounds=10, drafted={"lookup": 20})) is None
    mixed = Usage(rounds=10, undrafted_rounds=5, drafted={"lookup": 20, "worker": 9}, local_draft_passes=5)
    assert offload_share(mixed) == 0.5


def test_times_are_milliseconds() -> None:
    counts = {"proposed": 3, "verified": 2, "accepted": 1, "seconds": 0.0125, "why": None}
    figures = SourceFigures(proposed=3, verified=2, accepted=1, ms=12.5, why=None)
    assert usage_extension(Usage(sources={"lookup": counts})).sources == {"lookup": figures}
    shown = usage_extension(Usage(times=Times(queued_s=0.001, decode_s=1.5))).timings_ms
    assert msgspec.structs.asdict(shown) == {
        "queued": 1.0,
        "prefill": 0.0,
        "local": 0.0,
        "decode": 1500.0,
        "before_worker": 0.0,
        "total": 0.0,
        "host": 0.0,
    }


def test_the_learnt_limit_is_shown_and_never_added() -> None:
    one = LearntLimit(1.5, 4, 1)
    other = LearntLimit(2.5, 6, 0)
    assert usage_extension(Usage(phi=one)).phi == one and usage_extension(Usage()).phi is None
    assert combined([Usage(phi=one), Usage(phi=other)]).phi == one
    assert combined([Usage(), Usage(phi=other)]).phi == other


def test_a_client_sees_numbers_and_no_names_of_workers() -> None:
    shown = unnamed(Usage(by_worker={"ann": {}, "bob": {"frames": 2}}))
    assert shown.workers == ["worker 1", "worker 2"] and shown.by_worker["worker 2"] == {"frames": 2}
