"""Traces of real models and sockets, recorded and played again."""

from __future__ import annotations

import pytest

from cloud_gateway.core.requests.events import WorkerChanged
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.format import unseal
from cloud_gateway.parts.request_traces.play import check
from edgespec_lab.choices import gateway_choices
from edgespec_lab.sim.from_trace import Traced
from tools.parts.request_traces.scenes import Scene, record

POLICIES = gateway_choices().policies
pytestmark = pytest.mark.live


def test_answers_of_several_policies_and_one_that_loses_its_worker_replay() -> None:
    policies = ("wanspec", "adaptive", "plain")
    scenes = [Scene(policy, policy, prompt, tokens=48) for prompt, policy in enumerate(policies)]
    scenes.append(Scene("lost", "wanspec", len(scenes), tokens=160, worker_ends_after=8))
    found = {name: unseal(data)[0] for name, data in record(scenes, lambda said: None).items()}
    for name, recorded in found.items():
        checked = check(recorded, POLICIES)
        assert checked.differences == [] and checked.decisions > 5, name
        assert trace.emitted(recorded.entries) <= 160 and recorded.header.complete
    assert any(isinstance(event, WorkerChanged) and event.why == "gone" for _, event in found["lost"].entries)
    assert Traced(found["wanspec"], POLICIES).known > 0.5
