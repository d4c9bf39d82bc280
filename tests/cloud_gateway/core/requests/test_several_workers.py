"""One request, several workers: who is sent what, whose frame counts, and what is left when one leaves."""

from __future__ import annotations

from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from edgespec.core.protocol.messages import Close, Commit, Open, Share
from tests.cloud_gateway.core.requests.test_generation import decoding, frame, of, verify


def shared() -> tuple[Generation, list[object]]:
    """A request that `w` has, shared with `v`; and what followed from that."""
    generation = decoding("wanspec")
    return generation, list(generation.handle(events.WorkerChanged("v", "beside"), 0.0))


def sent(outputs: list[object], kind: type) -> list[tuple[str, object]]:
    return [(one.worker, one.body) for one in of(outputs, events.Send) if isinstance(one.body, kind)]


def test_a_second_worker_gets_the_prefix_and_both_their_shares() -> None:
    _, outputs = shared()
    assert [worker for worker, _ in sent(outputs, Open)] == ["v"]
    assert sent(outputs, Share) == [("w", Share(1, 1, 0, 2)), ("v", Share(1, 2, 1, 2))]


def test_a_worker_is_not_assigned_twice_nor_unasked() -> None:
    generation, _ = shared()
    assert not generation.handle(events.WorkerChanged("v", "beside"), 0.0)
    assert not generation.handle(events.WorkerChanged("u", "assigned"), 0.0), "without `beside` it may be the only one"


def test_both_are_sent_every_commit_under_their_own_epochs() -> None:
    generation, _ = shared()
    generation.handle(events.FrameArrived("w", frame(generation)), 0.5)
    commits = sent(list(verify(generation)), Commit)
    assert [(worker, body.epoch) for worker, body in commits] == [("w", 1), ("v", 2)]  # type: ignore[attr-defined]
    assert len({(body.prefix_len, body.prefix_hash) for _, body in commits}) == 1  # type: ignore[attr-defined]


def test_frames_of_both_are_merged_and_counted_apart() -> None:
    generation, _ = shared()
    generation.handle(events.FrameArrived("w", frame(generation, 1)), 0.5)
    generation.handle(events.FrameArrived("v", frame(generation, 2, right=False)), 0.5)
    assert len(generation.tree.tree) == 4
    verify(generation)
    usage = generation.usage
    assert usage.workers == ["w", "v"]
    assert usage.by_worker["w"] == {"frames": 1, "evaluated": 2, "fresh": 2, "verified": 2, "accepted": 2}
    assert usage.by_worker["v"] == {"frames": 1, "evaluated": 2, "fresh": 2, "verified": 2, "accepted": 0}
    assert sum(one["accepted"] for one in usage.by_worker.values()) == usage.accepted["worker"]


def test_when_one_leaves_the_other_drafts_everything_at_once() -> None:
    generation, _ = shared()
    generation.handle(events.FrameArrived("w", frame(generation, 1)), 0.5)
    generation.handle(events.FrameArrived("v", frame(generation, 2, right=False)), 0.5)
    outputs = list(generation.handle(events.WorkerChanged("w", "gone"), 0.6))
    assert sent(outputs, Share) == [("v", Share(1, 2, 0, 1))]
    assert {node.owner for node in generation.tree.tree.nodes.values()} == {"v"}
    assert generation.assignment is not None and generation.assignment.worker == "v"
    assert not generation.wants_worker
    later = generation.handle(events.FrameArrived("v", frame(generation, 2, first=3)), 0.7)
    assert of(list(later), events.FrameTaken)[0].kind == "used", "it goes on under its epoch, without a new prompt"


def test_one_that_is_needed_elsewhere_keeps_its_candidates() -> None:
    generation, _ = shared()
    generation.handle(events.FrameArrived("v", frame(generation, 2)), 0.5)
    outputs = list(generation.handle(events.WorkerChanged("v", "needed"), 0.6))
    assert sent(outputs, Close) == [("v", Close(1, 2, "needed elsewhere"))]
    assert sent(outputs, Share) == [("w", Share(1, 1, 0, 1))]
    assert len(generation.tree.tree) == 2
    assert generation.handle(events.WorkerChanged("v", "beside"), 0.7), "it may come back"


def test_a_decline_or_a_fault_of_one_leaves_the_other() -> None:
    generation, _ = shared()
    generation.handle(events.WorkerChanged("v", "declined"), 0.5)
    assert list(generation.assignments.given) == ["w"]
    assert generation.assignments.excluded == {"v"}


def test_the_end_closes_it_at_both() -> None:
    generation, _ = shared()
    outputs = list(generation.handle(events.Ended("stopped"), 1.0))
    assert {worker for worker, _ in sent(outputs, Close)} == {"w", "v"}
    assert len(of(outputs, events.Released)) == 2
