"""`python -m tools.survey` against `cloud-gateway serve` as processes: the times fit what the gateway counts."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.live.test_gateway_live import LOAD_S, gateway
from tools.survey.sample import read

pytestmark = pytest.mark.live
REQUESTS = 8


def survey(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.survey", *argv]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=LOAD_S, check=False, env=environment)


def median_s(counted: dict[str, str]) -> float:
    """The upper bound of the bucket in which the gateway's median time to the first token is."""
    bounds = {name.split('le="')[1].rstrip('"}'): float(count) for name, count in counted.items() if 'le="' in name}
    return min(float(bound) for bound, count in bounds.items() if count > REQUESTS / 2)


def test_the_projects_gateway_is_surveyed_and_reported(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        running.wait_ready()
        key = json.loads(running.command("keys", "create", "--json"))["key"]
        urls = {name: running.ready[name]["url"] for name in ("api", "metrics")}
        config, out = tmp_path / "survey.toml", tmp_path / "s.jsonl"
        endpoint = f'[[endpoints]]\nbase_url = "{urls["api"]}/v1"\nmodel = "tiny"\n'
        config.write_text(
            f'[schedule]\ninterval_s = 0.4\n{endpoint}name = "ours"\napi_key_env = "KEY"\n{endpoint}name = "keyless"\n'
        )
        done = survey(
            "--config", str(config), "--out", str(out), "--count", str(REQUESTS), "--duration-h", "0.006", KEY=key
        )
        with urllib.request.urlopen(f"{urls['metrics']}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
    assert done.returncode == 0, done.stderr
    samples = read([out])
    ours = [sample for sample in samples if sample.endpoint == "ours"]
    keyless = [sample for sample in samples if sample.endpoint == "keyless"]
    assert len(ours) == REQUESTS and {sample.outcome for sample in ours} <= {"ok", "empty"}
    answered = [sample for sample in ours if sample.outcome == "ok"]
    assert len(answered) > REQUESTS / 2, "the tiny target seldom draws the end of text as its first token"
    assert {sample.outcome for sample in keyless} == {"unauthorised"}
    assert len(keyless) < REQUESTS, "who refuses is asked ever more rarely"
    counted = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("edgespec_ttft_seconds"))
    first_tokens = float(counted["edgespec_ttft_seconds_count"])
    assert len(answered) <= first_tokens <= REQUESTS, "a completion that only ends has no first token"
    measured_s = [(sample.ttft_ms or sample.total_ms) / 1e3 for sample in ours]
    assert sum(measured_s) >= float(counted["edgespec_ttft_seconds_sum"]), "the way there and back comes on top"
    assert statistics.median(measured_s) < median_s(counted) + 0.1, (
        "and takes little, but where the machine stood still"
    )
    printed = survey("report", str(out), "--json")
    assert printed.returncode == 0, printed.stderr
    assert {one["endpoint"]: one["failure_rate"] for one in json.loads(printed.stdout)["endpoints"]} == {
        "ours": 1 - len(answered) / REQUESTS,
        "keyless": 1,
    }
    assert key not in done.stdout + done.stderr + printed.stdout + out.read_text()
