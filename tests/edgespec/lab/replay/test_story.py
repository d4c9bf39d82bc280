"""The story of a trace leaves nothing out and makes nothing up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cloud_gateway.core.trace import format as trace
from cloud_gateway.core.trace.format import Trace, emitted, unseal
from edgespec.lab.replay.story import folded, turns

SHIPPED = sorted((Path(__file__).parents[3] / "traces").glob("*.trace"))
BY_NAME = {path.stem: unseal(path.read_bytes())[0] for path in SHIPPED}


@pytest.mark.parametrize("recorded", BY_NAME.values(), ids=BY_NAME)
def test_every_token_frame_and_pass_is_shown_once(recorded: Trace) -> None:
    story = list(turns(recorded))
    assert sum(turn.tokens for turn in story) == sum(turn.tokens for turn in folded(story)) == emitted(recorded.entries)
    frames = sum(isinstance(event, trace.Frame) for _, event in recorded.entries)
    assert sum(len(turn.frames) for turn in story) == frames
    passes = sum(turn.times for turn in folded(story) if turn.decision.startswith(("verify", "plain")))
    assert passes == sum(isinstance(event, trace.Verified) for _, event in recorded.entries)
    assert [turn.at_ms for turn in story] == sorted(turn.at_ms for turn in story)
    assert all(turn.same for turn in story)


def test_a_worker_that_goes_is_shown_and_the_decisions_without_it() -> None:
    story = list(turns(BY_NAME["worker-lost"]))
    gone = next(i for i, turn in enumerate(story) if turn.worker_gone)
    assert {turn.why for turn in story[gone + 1 :] if not turn.hand} >= {"no worker"}
    assert not any(turn.frames for turn in story[gone + 2 :])


def test_reasons_follow_from_what_the_policy_saw() -> None:
    story = list(turns(BY_NAME["wanspec-dropped-40ms"]))
    assert story[0].decision == "plain" and story[0].why == "prompt unread"
    verified = [turn for turn in story if turn.decision.startswith("verify")]
    assert verified and all(turn.why.endswith("≥ k") for turn in verified)
    assert {"off the path", "frame due"} <= {turn.why for turn in story}


def test_a_decision_that_would_be_another_now_is_shown_as_such() -> None:
    recorded = BY_NAME["wanspec-20ms"]
    plain = msgspec.structs.replace(recorded.header.settings, name="plain")
    header = msgspec.structs.replace(recorded.header, settings=plain)
    story = list(turns(Trace(header, recorded.entries)))
    changed = [turn for turn in story if not turn.same]
    assert changed and all(turn.why == "now it would be: a plain decoding step" for turn in changed)
