"""Rows of the table of faults that need no new process: equal texts, no stall over the bound, full recovery."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.run import run
from tests.faults.scene import Scene
from tests.faults.table import TABLE, Scenario

QUICK = (
    "a worker is frozen for 1 s",
    "the gateway is frozen for 1 s",
    "the links are cut",
    "a partition of 1 s",
    "half open: frames to the gateway are lost for 2 s",
    "5 % loss",
    "300 ms jitter",
    "a worker is paused and resumed",
    "the gateway's disk is full",
    "the gateway has no descriptor left",
    "six clients hang up",
    "garbage on the link port",
)

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.mark.parametrize("scenario", [row for row in TABLE if row.name in QUICK], ids=lambda row: row.name)
def test_a_fault_changes_no_text_and_heals(scene: Scene, scenario: Scenario) -> None:
    assert run(scene, scenario).faults == []


def test_the_table_has_all_quick_rows_and_each_name_once() -> None:
    names = [row.name for row in TABLE]
    assert set(QUICK) <= set(names) and len(set(names)) == len(names) >= 40
