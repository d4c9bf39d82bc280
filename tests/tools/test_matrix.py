"""The parts of `tools.lossless matrix` that need no model; tests/live/test_matrix.py runs it."""

from __future__ import annotations

from typing import Any

from cloud_gateway.core.policies.settings import PolicySettings
from tools.lossless import __main__ as command
from tools.lossless import matrix
from tools.lossless.conditions import CONDITIONS, Answer, Case


class NoStage:
    """Stands in for rows that are made of answers which are there already."""


def answer(text: str, *, frames: int = 0, verified: int = 0, accepted: int = 0, after: int = 0) -> Answer:
    extension: dict[str, Any] = {
        "rounds": 5,
        "frames": {"received": frames, "used": frames, "rejected": 0},
        "drafted": {"worker": verified},
        "accepted": {"worker": accepted},
    }
    return Answer([(text, "length")], {"completion_tokens": 10, "edgespec": extension}, after)


def test_a_completion_counts_only_where_its_condition_was_applied() -> None:
    assert answer("abcd").exercised("none") and not answer("abcd", frames=1).exercised("none")
    assert answer("abcd", frames=2, verified=3, accepted=1).exercised("worker")
    assert not answer("abcd", frames=2, verified=3).exercised("two")
    assert answer("abcd", frames=2, verified=3, after=2).exercised("killed")
    assert not answer("abcd", after=2).exercised("killed"), "no frame was used before"
    assert not answer("abcd", frames=2, verified=3, after=0).exercised("killed"), "the answer had ended"
    assert not answer("abcd", frames=2, verified=3, after=4).exercised("killed"), "it had not begun"
    assert answer("abcd", frames=2).exercised("random") and not answer("abcd").exercised("random")


def test_one_different_text_is_found_and_named() -> None:
    table = matrix.Matrix(NoStage(), command.parser().parse_args(["matrix"]))
    table.cases = [Case("sampled", name, {}) for name in ("a", "b")]
    for condition in CONDITIONS:
        table.found[condition] = {"a": answer("same"), "b": answer("same" if condition != "killed" else "other")}
    identical = {row["condition"]: row["identical"] for row in table.rows()}
    assert identical == dict.fromkeys(CONDITIONS, 2) | {"killed": 1}
    report = table.report()
    assert not report["identical"] and [one["case"] for one in report["differences"]] == ["b"]
    assert report["differences"][0]["found"] == [("other", "length")]


def test_the_default_policy_is_the_gateways_and_a_list_runs_each() -> None:
    parsed = command.parser().parse_args(["matrix"])
    assert parsed.policy == [PolicySettings().name] == ["adaptive"]

    parsed = command.parser().parse_args(["matrix", "--policy", "adaptive", "wanspec"])
    requested = []
    for policy in parsed.policy:
        cases = matrix.sampled(0, "prompt", matrix.with_policy(parsed, policy))
        requested += [case.body["edgespec"]["policy"] for case in cases]
    assert requested == ["adaptive"] * 2 + ["wanspec"] * 2


def test_a_policy_with_another_text_is_named() -> None:
    reports = {"adaptive": {"texts": {"0": "same"}}, "wanspec": {"texts": {"0": "same"}}}
    assert matrix.differing_policies(reports) == []
    reports["wanspec"] = {"texts": {"0": "other"}}
    assert matrix.differing_policies(reports) == ["wanspec"]
