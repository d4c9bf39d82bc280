"""Shipped traces hold the policies to what they decided; and a replay can fail, so that this says something.

After a deliberate change of a policy record them again: `python -m tools.parts.request_traces.scenes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloud_gateway.core.policies.alone import Plain
from cloud_gateway.core.policies.policy import Policy
from cloud_gateway.core.policies.registry import POLICIES, make
from cloud_gateway.core.requests.events import WorkerChanged
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.format import AnyEvent, Decided, Trace, TraceError, unseal
from cloud_gateway.parts.request_traces.look import describe
from cloud_gateway.parts.request_traces.play import Player, check

FOLDER = Path(__file__).parent / "traces"
SHIPPED = sorted(FOLDER.glob("*.trace"))
NAMES = [path.stem for path in SHIPPED]


def shipped(name: str) -> Trace:
    return unseal((FOLDER / f"{name}.trace").read_bytes())[0]


def changed(recorded: Trace, **change: object) -> Policy:
    settings = msgspec.structs.replace(recorded.header.settings, **change)
    return make(settings)


@pytest.mark.parametrize("name", NAMES)
def test_the_policies_decide_as_when_the_traces_were_recorded(name: str) -> None:
    checked = check(shipped(name), POLICIES)
    shown = "\n".join(describe(one) for one in checked.differences[:5])
    assert not checked.differences, (
        f"{len(checked.differences)} of {checked.decisions} decisions of {name} are others now:\n{shown}\n"
        f"See `edgespec replay tests/parts/request_traces/traces/{name}.trace`. "
        f"If that is meant: `python -m tools.parts.request_traces.scenes {name}`."
    )
    assert checked.decisions >= 20


def test_the_shipped_traces_are_small_salted_and_of_several_policies() -> None:
    assert sum(path.stat().st_size for path in SHIPPED) < 300_000
    headers = [shipped(name).header for name in NAMES]
    assert all(header.salted and header.complete for header in headers)
    assert {"wanspec", "adaptive"} <= {header.settings.name for header in headers}


@pytest.mark.parametrize("change", [{"k": 3}, {"k": 1}, {"verify_nodes": 2}, {"phi": 0.0}])
def test_each_parameter_of_algorithm_1_shows_in_its_decisions(change: dict[str, object]) -> None:
    names = [name for name in NAMES if shipped(name).header.settings.name == "wanspec"]
    assert any(check(shipped(name), POLICIES, changed(shipped(name), **change)).differences for name in names)


@pytest.mark.parametrize("name", [name for name in NAMES if shipped(name).header.settings.name != "plain"])
def test_another_policy_does_not_pass_for_the_recorded_one(name: str) -> None:
    assert check(shipped(name), POLICIES, Plain()).differences


def bent(recorded: Trace, number: int, event: AnyEvent | None) -> Trace:
    """The trace with one event replaced, or left out."""
    entries = [(now, event if i == number else one) for i, (now, one) in enumerate(recorded.entries)]
    return Trace(recorded.header, [(now, one) for now, one in entries if one is not None])


def test_one_bit_of_a_time_shows() -> None:
    """A deadline is a sum of times, so the last bit of one changes it."""
    recorded = shipped("wanspec-20ms")
    number, event = next(
        (i, e) for i, (_, e) in enumerate(recorded.entries) if isinstance(e, Decided) and e.act.kind == "wait"
    )
    other = msgspec.structs.replace(event.act, value=event.act.value * (1 + 2**-52))
    checked = check(bent(recorded, number, msgspec.structs.replace(event, act=other)), POLICIES)
    assert [one.now_act for one in checked.differences] == [event.act]


def first(recorded: Trace, kind: type) -> tuple[int, Any]:
    """The first event of a kind that brought something."""
    moments = enumerate(Player(recorded, POLICIES).play())
    return next(
        (i, m.event)
        for i, m in moments
        if isinstance(m.event, kind) and (m.fresh if kind is trace.Frame else m.effects or m.decided)
    )


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (trace.Frame, None),
        (trace.Frame, {"first": 99}),
        (trace.Frame, {"on_path": False}),
        (trace.Verified, {"tokens": []}),
        (WorkerChanged, None),
        (Decided, {"size": 99}),
    ],
)
def test_an_input_that_is_another_one_is_noticed(kind: type, change: dict[str, Any] | None) -> None:
    recorded = shipped("wanspec-20ms")
    number, event = first(recorded, kind)
    other = None if change is None else msgspec.structs.replace(event, **change)
    with pytest.raises(TraceError, match="cannot be played again"):
        check(bent(recorded, number, other), POLICIES)


def test_an_end_that_is_another_one_is_noticed() -> None:
    recorded = shipped("wanspec-20ms")
    with pytest.raises(TraceError, match="it ends by"):
        check(Trace(msgspec.structs.replace(recorded.header, finish="cancelled"), recorded.entries), POLICIES)


def test_a_policy_that_this_version_lacks_is_one_sentence() -> None:
    recorded = shipped("wanspec-20ms")
    settings = msgspec.structs.replace(recorded.header.settings, name="clairvoyant")
    header = msgspec.structs.replace(recorded.header, settings=settings)
    with pytest.raises(TraceError, match="clairvoyant.*it lacks a part, or is another version"):
        check(Trace(header, recorded.entries), POLICIES)
