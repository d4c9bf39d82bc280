"""Replay and the story of a trace: same decisions, nothing left out, no altered trace."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pytest

from cloud_gateway.__main__ import main
from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.policy import Action, Costs, LearntLimit, LinkView
from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.format import Trace, emitted, seal, unseal
from cloud_gateway.parts.request_traces.story import folded, turns
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.paired import PairedGateways

SHIPPED = Path(__file__).parent / "traces"
ONE = SHIPPED / "wanspec-20ms.trace"
KEY = SigningKey(b"k" * 32)


def replay(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = main(["replay", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_shipped_trace_decides_the_same_and_is_shown_by_round(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = replay(capsys, ONE)
    recorded = unseal(ONE.read_bytes())[0]
    asked = sum(isinstance(event, trace.Decided) for _, event in recorded.entries)
    assert status == 0 and f"{asked} of {asked} decisions the same, bit for bit" in out
    assert "verify" in out and "plain" in out and "frames" in out


def test_a_signature_of_another_gateway_is_refused_where_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    signer = unseal(ONE.read_bytes())[1]
    assert replay(capsys, ONE, "--key", key_id(signer))[0] == 0
    assert replay(capsys, ONE, "--key", signer.hex())[0] == 0
    status, _, err = replay(capsys, ONE, "--key", KEY.public.hex())
    assert status == 65 and f"signed by gateway {key_id(signer)}" in err
    assert replay(capsys, ONE, "--key", "what")[0] == 78


def test_a_paired_gateway_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    signer = unseal(ONE.read_bytes())[1]
    PairedGateways(tmp_path / "edgespec" / "worker" / "keys").add(signer, bytes(32), "hall", "wss://h:7443", 1)
    assert "signed by hall (" in replay(capsys, ONE)[1]


def test_another_decision_than_the_recorded_one_ends_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = unseal(ONE.read_bytes())[0]
    plain = msgspec.structs.replace(recorded.header.settings, name="plain")
    settings = msgspec.structs.replace(recorded.header, settings=plain)
    path = tmp_path / "other.trace"
    path.write_bytes(seal(Trace(settings, recorded.entries), KEY))
    status, out, _ = replay(capsys, path)
    assert status == 1 and "are not the recorded ones" in out and "is a plain decoding step" in out
    status, out, _ = replay(capsys, path, "--json")
    (row,) = json.loads(out)["traces"]
    assert status == 1 and row["same"] < row["decisions"] and row["differences"][0]["now_act"] == ["verify", [], 0]


def forged(path: Path, **texts: object) -> Path:
    """A trace with these texts in its header, signed by a key that nobody knows."""
    recorded = unseal(ONE.read_bytes())[0]
    path.write_bytes(seal(Trace(msgspec.structs.replace(recorded.header, **texts), recorded.entries), KEY))
    return path


@pytest.mark.claim("markup-in-a-trace-is-printed-as-it-stands")
@pytest.mark.parametrize("field", ["edgespec", "finish", "workers"])
def test_a_trace_with_control_characters_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    evil = "\x1b]0;TITLE\x07\x1b[31m"
    status, out, err = replay(capsys, forged(tmp_path / "a.trace", **{field: [evil] if field == "workers" else evil}))
    assert (status, out) == (65, "") and "\x1b" not in err and "cannot be read" in err


@pytest.mark.claim("markup-in-a-trace-is-printed-as-it-stands")
def test_an_error_that_quotes_a_trace_has_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, entries = msgspec.msgpack.decode(trace.encode(unseal(ONE.read_bytes())[0]))
    body = zlib.compress(msgspec.msgpack.encode([header | {"\x1b[31m": 1}, entries]))
    path = tmp_path / "\x1b[31m.trace"
    path.write_bytes(trace.MAGIC + KEY.public + KEY.sign(trace.KIND, KEY.public + body) + body)
    status, _, err = replay(capsys, path)
    assert status == 65 and "unknown field" in err and "\x1b" not in err


@pytest.mark.claim("markup-in-a-trace-is-printed-as-it-stands")
@pytest.mark.parametrize("text", ["[bold green]signed by trusted-gateway[/]", "[/]"])
def test_markup_in_a_trace_is_printed_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = forged(tmp_path / "[b].trace", edgespec=text)
    status, out, _ = replay(capsys, path)
    assert status == 0 and text in out and "[b].trace: signed by" in out


@pytest.mark.claim("markup-in-a-trace-is-printed-as-it-stands")
def test_a_trace_signed_by_an_unknown_key_is_shown_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = forged(tmp_path / "a.trace")
    assert f"signed by an unknown key, {key_id(KEY.public)}" in replay(capsys, path)[1]
    assert f"signed by gateway {key_id(KEY.public)}" in replay(capsys, path, "--key", key_id(KEY.public))[1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.trace"], 65, "cannot be read"),
        (["README.md"], 65, "not an edgespec trace"),
    ],
)
def test_mistakes_are_one_sentence_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], arguments: list[str | Path], code: int, said: str
) -> None:
    status, _, err = replay(capsys, *arguments)
    assert status == code and said in err and len(err.splitlines()) == 1


TRACES = sorted((Path(__file__).parent / "traces").glob("*.trace"))
BY_NAME = {path.stem: unseal(path.read_bytes())[0] for path in TRACES}


@pytest.mark.parametrize("recorded", BY_NAME.values(), ids=BY_NAME)
def test_every_token_frame_and_pass_is_shown_once(recorded: Trace) -> None:
    story = list(turns(recorded, POLICIES))
    assert sum(turn.tokens for turn in story) == sum(turn.tokens for turn in folded(story)) == emitted(recorded.entries)
    frames = sum(isinstance(event, trace.Frame) for _, event in recorded.entries)
    assert sum(len(turn.frames) for turn in story) == frames
    passes = sum(turn.times for turn in folded(story) if turn.decision.startswith(("verify", "plain")))
    assert passes == sum(isinstance(event, trace.Verified) for _, event in recorded.entries)
    assert [turn.at_ms for turn in story] == sorted(turn.at_ms for turn in story)
    assert all(turn.same for turn in story)


def test_an_entropy_above_the_learnt_limit_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision notes one more open leaf above 1.5 nats."""
    limits = [LearntLimit(1.5, count, count) for count in range(1, 1000)]
    decide = Adaptive.decide

    def noting(policy: Adaptive, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        policy.learnt_phi = limits.pop(0)
        return decide(policy, tree, link, costs, now)

    monkeypatch.setattr(Adaptive, "decide", noting)
    whys = {turn.why for name in ("adaptive-20ms", "adaptive-dropped-40ms") for turn in turns(BY_NAME[name], POLICIES)}
    assert "entropy > 1.50, learnt" in whys


def test_a_worker_that_goes_is_shown_and_the_decisions_without_it() -> None:
    story = list(turns(BY_NAME["worker-lost"], POLICIES))
    gone = next(i for i, turn in enumerate(story) if turn.worker_gone)
    assert {turn.why for turn in story[gone + 1 :] if not turn.candidates} >= {"no worker"}
    assert not any(turn.frames for turn in story[gone + 2 :])


def test_reasons_follow_from_what_the_policy_saw() -> None:
    story = list(turns(BY_NAME["wanspec-dropped-40ms"], POLICIES))
    assert story[0].decision == "plain" and story[0].why == "prompt unread"
    verified = [turn for turn in story if turn.decision.startswith("verify")]
    assert verified and all(turn.why.endswith("≥ k") for turn in verified)
    assert {"off the path", "frame due"} <= {turn.why for turn in story}


def test_a_decision_that_would_be_another_now_is_shown_as_such() -> None:
    recorded = BY_NAME["wanspec-20ms"]
    plain = msgspec.structs.replace(recorded.header.settings, name="plain")
    header = msgspec.structs.replace(recorded.header, settings=plain)
    story = list(turns(Trace(header, recorded.entries), POLICIES))
    changed = [turn for turn in story if not turn.same]
    assert changed and all(turn.why == "now it would be: a plain decoding step" for turn in changed)


def test_a_worker_shows_a_trace_as_its_gateway_does() -> None:
    command = [sys.executable, "-m", "edgespec", "replay", str(ONE), "--no-story"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "decisions the same, bit for bit" in done.stdout
