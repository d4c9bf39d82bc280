"""`edgespec tune`: what it recommends from figures, and how it changes a file."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cloud_gateway.core.requests.request import Times, Usage
from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import load, schema
from edgespec.core.errors import ConfigError
from edgespec.shared.settings import parse
from edgespec_lab import tune
from edgespec_lab.tune import rewritten
from edgespec_lab.tune.advice import Advice, Measured, caution, recommend
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target

PASSES = {1: 30.0, 4: 34.0, 8: 40.0, 16: 60.0, 32: 110.0}
EXAMPLE = Path(__file__).parents[2] / "configs" / "gateway.toml"


def measured(rtt_ms: float | None = None, **arms: float) -> Measured:
    return Measured(arms={"plain": 30.0, **arms}, match=0.8, pass_ms=PASSES, step_ms=5.0, read_ms=1.0, rtt_ms=rtt_ms)


def values(found: list[Advice]) -> dict[str, Any]:
    return {one.key: one.value for one in found}


ARMS = {"lookup": 29.0, "colocated": 20.0, "draft": 16.0, "merge": 16.0}
PAYS = {"policy.name": "adaptive", "policy.sources": ["lookup"], "local_draft.model": "auto:quantised"}
NOTHING = {"policy.name": "plain", "policy.sources": [], "local_draft.model": ""}
BARE = Measured(arms={"plain": 30.0, "lookup": 20.0}, match=None, pass_ms=PASSES, step_ms=None)


@pytest.mark.parametrize(
    ("found", "draft", "expected"),
    [
        (measured(lookup=28.0, colocated=18.0, draft=15.0, merge=14.0), "auto:quantised",
         PAYS | {"policy.prefer": "latency", "policy.k": 4, "policy.verify_nodes": 8}),
        (measured(lookup=30.5, colocated=33.0, draft=31.0, merge=31.0), "auto:quantised", NOTHING),
        (measured(5.0, **ARMS), "auto:quantised", {"policy.prefer": "offload"}),
        (measured(300.0, **ARMS), "auto:quantised", {"policy.prefer": "latency"}),
        (measured(5.0, **ARMS), "self", {"local_draft.model": "self", "policy.prefer": "latency"}),
        (BARE, "", PAYS | {"local_draft.model": ""}),
    ],
    ids=["a draft that pays", "nothing pays", "a near worker", "a far worker", "a self-draft", "no draft"],
)  # fmt: skip
def test_what_is_recommended_follows_from_the_arms(found: Measured, draft: str, expected: dict[str, Any]) -> None:
    recommended = values(recommend(found, draft))
    assert {key: recommended[key] for key in expected} == expected


def test_a_draft_that_does_not_pay_is_turned_off_with_the_reason() -> None:
    found = recommend(measured(lookup=15.0, colocated=18.0, draft=16.0, merge=15.0), "auto:quantised")
    (draft,) = (one for one in found if one.key == "local_draft.model")
    assert draft.value == "" and draft.why.startswith("no draft pays here: with it 15.0 ms per token (merge)")
    assert values(found)["policy.name"] == "adaptive" and "policy.k" not in values(found)


def test_the_self_draft_is_recommended_where_it_is_the_fastest() -> None:
    arms = {"lookup": 29.0, "colocated": 26.0, "draft": 25.0, "merge": 25.0}
    found = recommend(measured(**arms, self=20.0), "auto:quantised")
    (draft,) = (one for one in found if one.key == "local_draft.model")
    assert draft.value == "self" and draft.why == "with it 20.0 ms per token (self), without 29.0 (lookup)"
    assert "policy.k" not in values(found), "that is of the other draft"
    assert values(recommend(measured(**arms, self=26.0), "auto:quantised"))["local_draft.model"] == "auto:quantised"


def test_heads_are_a_source_where_they_pay() -> None:
    found = recommend(measured(lookup=31.0, medusa=20.0), "")
    (sources,) = (one for one in found if one.key == "policy.sources")
    assert sources.value == ["medusa"] and values(found)["policy.name"] == "adaptive"
    assert (
        sources.why == "lookup alone takes 31.0 ms per token, medusa alone takes 20.0 ms per token, plain decoding 30.0"
    )
    assert values(recommend(measured(lookup=20.0, medusa=31.0), ""))["policy.sources"] == ["lookup"]
    assert values(recommend(measured(medusa=31.0, eagle=20.0), ""))["policy.sources"] == ["eagle"]


def test_the_match_rate_follows_from_what_a_round_of_two_accepts() -> None:
    assert tune.match_of([Usage(rounds=10, accepted={"local": 12})]) == pytest.approx(0.704, abs=1e-3)
    assert tune.match_of([Usage(rounds=10, accepted={"local": 20})]) == 1.0
    assert tune.match_of([Usage()]) is None


def test_arms_are_compared_prompt_by_prompt() -> None:
    def took(*seconds: float) -> list[Usage]:
        return [Usage(completion_tokens=10, times=Times(total_s=one)) for one in seconds]

    found = tune.per_token({"plain": took(0.1, 0.2, 0.9), "lookup": took(0.05, 0.1, 0.9)})
    assert found == {"plain": 20.0, "lookup": 10.0}


def test_a_busy_machine_is_named_as_a_reason_for_doubt() -> None:
    quiet = measured()
    assert caution(quiet) is None and "quiet" in str(caution(replace(quiet, busy=2.0)))


def test_a_file_keeps_its_comments_and_other_keys() -> None:
    text = EXAMPLE.read_text()
    changed = rewritten(text, {"policy.name": "plain", "policy.sources": [], "local_draft.model": ""})
    before = text.splitlines()
    after = changed.splitlines()
    assert len(before) == len(after) and sum(a != b for a, b in zip(before, after)) == 3
    assert parse(changed, schema(all_parts()), "changed").policy.name == "plain"


def test_keys_that_are_missing_go_to_the_end_of_their_table() -> None:
    text = "# ours\n[policy]\nk = 3\n\n[api]\nport = 1\n"
    changed = rewritten(text, {"policy.prefer": "offload", "target.threads": 2, "policy.phi": 1.0})
    assert changed == (
        '# ours\n[policy]\nk = 3\nprefer = "offload"\nphi = 1.0\n\n[api]\nport = 1\n\n[target]\nthreads = 2\n'
    )


def test_writing_makes_a_file_or_changes_it_and_never_leaves_a_broken_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gateway.toml"
    tune.write(path, [Advice("policy.name", "plain", "")])
    tune.write(path, [Advice("policy.k", 4, "")])
    assert (load(path, all_parts()).policy.name, load(path, all_parts()).policy.k) == ("plain", 4)
    before = path.read_text()
    with pytest.raises(ConfigError):
        tune.write(path, [Advice("policy.k", 400, "")])
    assert path.read_text() == before


def test_the_round_trip_is_that_of_a_tcp_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert 0 < tune.round_trip_ms(f"wss://127.0.0.1:{port}") < 1000
    with pytest.raises(ConfigError, match="cannot be reached"):
        tune.round_trip_ms(f"wss://127.0.0.1:{port}")


@pytest.mark.live
def test_tiny_models_are_measured_and_the_file_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edgespec.__main__ import main

    folder = make_tiny_target(tmp_path / "target", vocab=320)
    draft = make_tiny_gguf(tmp_path / "draft.gguf", vocab=320)
    path = tmp_path / "gateway.toml"
    prompts = tmp_path / "prompts.jsonl"
    path.write_text(
        f'[target]\nmodel = "{folder}"\nengine = "torch"\ncontext = 512\n[local_draft]\nmodel = "{draft}"\n'
        f'[daemon]\nstate_dir = "{tmp_path / "state"}"\n'
    )
    prompts.write_text('{"prompt": "hello there"}\n{"prompt": "and again"}\n')
    given = ["tune", "--config", str(path), "--prompts", str(prompts), "--limit", "2", "--max-tokens", "8"]
    assert main([*given, "--json", "--write"]) == 0
    report = json.loads(capsys.readouterr().out)
    arms = report["measured"]["arms"]
    chosen = {one["key"]: one["value"] for one in report["settings"]}
    assert {"plain", "merge", "answers"} <= set(arms)
    assert report["queued_answers"].startswith("Queued answers") and report["measured"]["write_s"] > 0
    assert load(path, all_parts()).policy.name == chosen["policy.name"]
