"""The model of a link that simulator and proxy share."""

from __future__ import annotations

import random

import pytest

from edgespec.lab.link_model import LinkModel, OneWay


def draws(model: LinkModel, count: int = 20_000) -> list[float]:
    rng = random.Random(1)
    return [model.delay(rng) for _ in range(count)]


def test_a_steady_link_takes_half_the_round_trip_each_way() -> None:
    assert OneWay(LinkModel(rtt_s=0.1), random.Random(1)).arrival(5.0, 10) == pytest.approx(5.05)


def test_jitter_is_the_mean_of_an_exponential_delay() -> None:
    extra = [delay - 0.05 for delay in draws(LinkModel(rtt_s=0.1, jitter_s=0.02))]
    assert min(extra) >= 0 and sum(extra) / len(extra) == pytest.approx(0.02, rel=0.05)
    beyond = sum(delay > 0.04 for delay in extra) / len(extra)
    assert beyond == pytest.approx(0.1353, rel=0.1), "exp(-2) of them lie beyond twice the mean"


def test_a_loss_costs_its_repair_as_often_as_it_happens_again() -> None:
    model = LinkModel(rtt_s=0.1, loss=0.3)
    assert model.repair_s == pytest.approx(0.129), "1.25 round trips and the gap to the next packet"
    repairs = [round((delay - 0.05) / model.repair_s) for delay in draws(model)]
    assert sum(repairs) / len(repairs) == pytest.approx(0.3 / 0.7, rel=0.05)


def test_nothing_overtakes_what_was_sent_before() -> None:
    rough = OneWay(LinkModel(rtt_s=0.1, jitter_s=0.5, loss=0.5), random.Random(1))
    times = [rough.arrival(i * 0.01, 10) for i in range(200)]
    assert times == sorted(times)


def test_bandwidth_is_shared_by_what_is_sent_at_once() -> None:
    slow = OneWay(LinkModel(bandwidth_bps=8000), random.Random(1))
    assert slow.arrival(0.0, 500) == pytest.approx(0.5) and slow.arrival(0.0, 500) == pytest.approx(1.0)
    assert slow.busy_until == pytest.approx(1.0)
    free = OneWay(LinkModel(bandwidth_bps=float("inf")), random.Random(1))
    assert free.arrival(1.0, 10**9) == 1.0
