"""The live picture's events: every token, candidate and frame of a request stands in one of them, and nothing else."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.policy import Costs, LearntLimit, Wait
from cloud_gateway.core.requests.request import Usage
from cloud_gateway.parts.live_picture.pages import check_origin
from cloud_gateway.parts.live_picture.view import STATIC, Spelling, View, _usage, alone, played
from edgespec.core.errors import ClientError
from tests.cloud_gateway.core.requests.test_generation import made
from tests.parts.live_picture.completions import past_completion
from tests.support.past import SHIPPED, past, shipped, usage_of


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_events_add_up_to_the_usage_of_the_request(path: Path) -> None:
    request = past(path)
    usage = usage_of(request)
    found = played(request)["events"]
    passes = [one for one in found if one["kind"] == "pass"]
    assert sum(len(one["tokens"]) for one in passes) == usage.completion_tokens
    assert len(passes) == usage.rounds
    for one in passes:
        nodes = one["nodes"]
        tokens = one["tokens"]
        accepted = [node for node in nodes if node["fate"] == "accepted"]
        assert [node["text"] for node in accepted] == [token["text"].strip() for token in tokens[: len(accepted)]]
        assert all(node["parent"] <= row and 0 <= node["chance"] <= 1 for row, node in enumerate(nodes))
        assert one["since"] <= one["at"] and 0 < one["plain"] <= one["at"] - one["since"] + 1e-5
        drafted = [token for token in tokens if token.get("source") != "target"]
        assert len(tokens) - 1 <= len(drafted) <= len(accepted)
    assert sum(node["fate"] == "accepted" for one in passes for node in one["nodes"]) == sum(usage.accepted.values())
    assert sum(len(one["nodes"]) for one in passes) == sum(usage.drafted.values())
    assert sum(one["kind"] == "frame" for one in found) <= usage.frames["received"]
    late = [text for one in found if one["kind"] == "frame" for text in one["late"]]
    assert late
    assert [one["at"] for one in passes] == sorted(one["at"] for one in passes)


def test_each_change_of_the_policys_mode_is_shown_with_its_reason() -> None:
    generation = made("adaptive")
    policy = generation.policy
    assert isinstance(policy, Adaptive)
    shown: list[dict[str, Any]] = []
    view = View(generation, Spelling(str, str), lambda worker, name: name, shown.append)

    for change in (None, ("alone", "slower"), None):
        policy.change = change  # as `decide` leaves it
        view.decided(None, Costs(lambda rows: 0.01), 1.23456789, Wait(2.0))
    (changed,) = (one for one in shown if one["kind"] == "guard")
    assert (changed["at"], changed["mode"], changed["why"]) == (1.234568, "alone", "slower"), "times in microseconds"


def owner(shown: dict[str, str]) -> tuple[str, str]:
    """Who drafted a node or a token: a worker or a source, and its name."""
    ((kind, name),) = [(kind, shown[kind]) for kind in ("worker", "source") if kind in shown]
    return kind, name


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_token_is_shown_with_who_drafted_it(path: Path) -> None:
    request = past(path)
    usage = usage_of(request)
    accepted: Counter[str] = Counter()
    drafted: Counter[str] = Counter()
    for one in played(request)["events"]:
        if one["kind"] != "pass":
            continue
        taken = [owner(node) for node in one["nodes"] if node["fate"] == "accepted"]
        tokens = [owner(token) for token in one["tokens"]]
        assert tokens[: len(taken)] == taken[: len(tokens)], "the one that drafted the accepted node at its place"
        assert set(tokens[len(taken) :]) <= {("source", "target")}
        for node in one["nodes"]:
            kind, name = owner(node)
            drafted["worker" if kind == "worker" else name] += 1
            accepted["worker" if kind == "worker" else name] += node["fate"] == "accepted"
    assert (+drafted, +accepted) == (Counter(usage.drafted), +Counter(usage.accepted))


def test_a_shipped_trace_has_passes_that_two_drafters_share() -> None:
    """Or no trace would show that tokens of one drafter are never under another's name."""
    events = played(past(shipped("adaptive-20ms")))["events"]
    passes = [event for event in events if event["kind"] == "pass"]
    drafters = [{owner(token) for token in event["tokens"][:-1]} for event in passes]
    assert any(len(names) > 1 for names in drafters)


def test_the_end_of_a_request_has_the_learnt_limit() -> None:
    assert _usage(Usage(phi=LearntLimit(1.5, 4, 1)))["phi"] == {"nats": 1.5, "leaves": 4, "above": 1}
    assert _usage(Usage())["phi"] is None


@pytest.mark.claim("pages-of-other-origins-get-nothing-of-the-page")
@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({"Host": "127.0.0.1:8080"}, True),
        ({"Host": "localhost:8080", "Origin": "http://localhost:8080"}, True),
        ({"Host": "localhost", "Origin": "https://ui.example", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Host": "localhost", "Sec-Fetch-Site": "cross-site"}, False),
        ({"Host": "localhost", "Sec-Fetch-Site": "same-site"}, False),
        ({"Host": "localhost:8080", "Origin": "http://localhost:9090"}, False),
        ({"Host": "localhost:8080", "Origin": "null"}, False),
        ({"Host": "gateway.example:8080"}, False),
        ({}, False),
    ],
)
def test_only_pages_under_names_of_this_machine_are_served(headers: dict[str, str], own: bool) -> None:
    if own:
        check_origin(headers)
        return
    with pytest.raises(ClientError) as refused:
        check_origin(headers)
    assert refused.value.status == 403


@pytest.mark.claim("hostile-text-is-text-on-the-page")
def test_one_file_holds_the_page_and_a_request_whose_text_is_no_markup() -> None:
    found = played(past_completion())
    found["events"][0]["id"] = "</script><script>alert(1)</script>"
    text = alone(found)
    (held,) = re.findall(r'<script type="application/json" id="trace">(.*?)</script>', text, re.DOTALL)
    assert json.loads(held) == found and "alert(1)" not in text.replace(held, "")
    assert not re.search(r"^(import|export) |(?:src|href)=\"(?!#)", text, re.MULTILINE)


@pytest.mark.claim("the-page-runs-no-script-but-its-own-files")
def test_the_page_is_small_and_has_no_script_of_its_own() -> None:
    sizes = {one.name: len(one.read_bytes()) for one in STATIC.iterdir()}
    assert sum(sizes.values()) < 70_000
    html = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>(.*?)</script>", html) == [""] and not re.search(r" (on\w+|style)=", html)
    named = re.findall(r'(?:src|href)="ui/([\w.]+)"', html) + re.findall(
        r'from "\./([\w.]+)"', "".join(one.read_text() for one in STATIC.iterdir())
    )
    assert set(named) == set(sizes) - {"index.html"}
