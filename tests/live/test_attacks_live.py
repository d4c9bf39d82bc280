"""Each flood for a few seconds against a real gateway and worker: nothing ends, nothing fails, nothing fills the log.

How much slower another key's completions get is measured by `python -m tools.attacks`, which needs a quiet machine and
minutes; here the bound is so wide that only a stall breaks it, and standstills of the machine are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.standstill import Standstills
from tools.attacks.floods import all_floods
from tools.attacks.measure import broken, row
from tools.attacks.runner import ROOT, Runner
from tools.attacks.scene import Scene

pytestmark = pytest.mark.live
SECONDS = 4.0
STALL = 20.0
"""Times p99 without the flood."""
ENOUGH = 8
"""Gaps of the control below which this machine is too busy for a ratio."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("scene"), ROOT) as scene:
        yield scene


@pytest.mark.claim("a-flood-ends-nothing-and-stalls-nobody")
@pytest.mark.parametrize("name", list(all_floods()))
def test_a_flood_ends_nothing_and_stalls_nobody(scene: Scene, name: str) -> None:
    with Standstills() as standstills:
        outcome = Runner(scene, SECONDS).run(name, all_floods()[name])
    for number, one in enumerate(outcome.events):
        outcome.events[number] = replace(one, seconds=standstills.without(one.start, one.start + one.seconds))
    found = row(outcome)
    assert sum(found["sent"].values()) > 0, "the attacker reached the gateway"
    bounds = list(broken(found, STALL))
    if found["control"]["gaps"] < ENOUGH:
        bounds = [text for text in bounds if not text.startswith("p99")]
    assert bounds == [], found
