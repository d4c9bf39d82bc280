"""The core's rule for numbers of threads: a fixed number, which leaves a core to other processes."""

from __future__ import annotations

import pytest

from edgespec.shared.part import Part, thread_rule
from edgespec.shared.threads import ONE_CORE_LEFT, FixedRule, begun, fixed_if
from tests.support.thread_rules import Alternating


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 1), (8, 7)])
def test_without_a_configured_number_one_core_is_left(cores: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert ONE_CORE_LEFT.counts() == [count]


def test_a_configured_number_is_set_once() -> None:
    taken = list[int]()
    use = FixedRule(3).use(FixedRule(3).counts(), taken.append, "target")
    use.begin(lambda: pytest.fail("a pass was made"))
    with use.watched(1):
        pass
    use.idle(lambda: pytest.fail("a pass was made"))
    assert taken == [3]


def test_a_configured_number_comes_before_the_rule_of_a_part() -> None:
    rule = Alternating()
    assert fixed_if(5, rule) == FixedRule(5)
    assert fixed_if(0, rule) is rule


def test_the_rule_is_that_of_the_first_part_with_one() -> None:
    rule = Alternating()
    assert thread_rule([Part("without"), Part("with", threads=rule), Part("later", threads=FixedRule(2))]) is rule
    assert thread_rule([Part("without")]) is ONE_CORE_LEFT


def test_with_a_gpu_the_number_stays_after_the_beginning() -> None:
    rule = Alternating()
    use = begun(rule.use([1, 2], lambda number: None, "target"), lambda: None, on_gpu=True)
    with use.watched(1):
        pass
    assert rule.calls == ["use [1, 2] for the target", "begin"]
