"""Gateway and workers as processes, with streams under way, while a folder of keys is away for five seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import outside
from tests.faults.run import run
from tests.faults.scene import Scene
from tests.faults.table import Scenario

pytestmark = pytest.mark.live


@pytest.mark.claim("a-list-that-is-away-unpairs-nobody")
def test_folders_of_keys_that_are_away_for_5_s_cost_no_worker(tmp_path: Path) -> None:
    """The same two rows as in `make test-faults`: texts whole, links up, 503 meanwhile, and drafts afterwards."""
    rows = [
        Scenario("the gateway's folder of keys", outside.gateway_keys_away),
        Scenario("a worker's folder of keys", outside.worker_keys_away),
    ]
    with Scene(tmp_path) as scene:
        for row in rows:
            assert run(scene, row).faults == [], row.name
