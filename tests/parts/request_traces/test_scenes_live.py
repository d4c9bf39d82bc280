"""Traces of real models and sockets, recorded and played again."""

from __future__ import annotations

import pytest

from cloud_gateway.core.requests.events import WorkerChanged
from cloud_gateway.parts.request_traces.format import emitted, unseal
from cloud_gateway.parts.request_traces.play import check
from edgespec_lab.choices import gateway_choices
from edgespec_lab.sim.from_trace import Traced
from tools.parts.request_traces.scenes import Scene, record

POLICIES = gateway_choices().policies
pytestmark = pytest.mark.live


def test_answers_of_several_policies_and_one_that_loses_its_worker_replay() -> None:
    # A worker may read its first prompt for two seconds, in which the target emits 100 tokens and more; what is said
    # before its first frame is not known to the trace.
    scenes = [
        Scene("wanspec", "wanspec", 0, tokens=400, endless=True),
        Scene("adaptive", "adaptive", 1, tokens=48),
        Scene("plain", "plain", 2, tokens=48),
        Scene("lost", "wanspec", 3, tokens=160, worker_ends_after=8),
    ]
    recordings = record(scenes, lambda said: None)
    recorded = {name: unseal(data)[0] for name, data in recordings.items()}

    for scene in scenes:
        trace = recorded[scene.name]
        checked = check(trace, POLICIES)
        assert checked.differences == [] and checked.decisions > 5, scene.name
        assert emitted(trace.entries) <= scene.tokens and trace.header.complete
    assert any(isinstance(event, WorkerChanged) and event.why == "gone" for _, event in recorded["lost"].entries)
    assert Traced(recorded["wanspec"], POLICIES).known > 0.5
