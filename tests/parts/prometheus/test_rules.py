"""Alert rules and dashboard name metrics that the gateway has, and Prometheus' own tool accepts their expressions."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_gateway.core.requests.accounting import Stats
from cloud_gateway.part import Operating
from cloud_gateway.parts.prometheus.figures import Metrics, Totals
from tests.support.programs import require

FOLDER = Path(__file__).parents[3] / "integrations" / "prometheus"
SUFFIX = re.compile(r"_(total|bucket|sum|count)$")


def exported() -> set[str]:
    """Names of all metrics of a gateway with a worker."""
    metrics = Metrics()
    engine = SimpleNamespace(stats=Stats(), queued=0, active=0)
    workers: list[Any] = [SimpleNamespace(rtt_s=0.02, paused=False)]
    metrics.registry.register(Totals(Operating(engine, lambda: workers, lambda: 0, {"sent": 1}, list)))
    return set(re.findall(r"^# TYPE (\S+)", metrics.exposition().decode(), re.MULTILINE))


def expressions() -> list[str]:
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_every_metric_that_operators_are_given_exists(name: str) -> None:
    named = set(re.findall(r"\bedgespec_[a-z_]+", (FOLDER / name).read_text()))
    known = exported()
    assert len(named) > 5
    assert {one for one in named if one not in known and SUFFIX.sub("", one) not in known} == set()


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [require("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=FOLDER
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    assert "8 rules found" in promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def test_the_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{n}", "expr": one.replace("$__rate_interval", "5m")} for n, one in enumerate(expressions())
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)
