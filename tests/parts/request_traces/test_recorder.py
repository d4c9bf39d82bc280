"""The recorder: what the live engine decided can be decided again, and a trace gives away no text."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from cloud_gateway.core.policies import adaptive, estimators
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.policies.worth import Prices
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.request import Speculation
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.format import Decided, Frame, Trace, Verified
from cloud_gateway.parts.request_traces.play import check
from cloud_gateway.parts.request_traces.recorder import Recorder
from edgespec.core.errors import ConfigError
from edgespec.core.protocol.messages import Sampling
from tests.cloud_gateway.core.requests.test_generation import COSTS, made
from tests.parts.request_traces.traced import KEY, METHODS, PROMPT, SETTINGS, read, record
from tests.support.constraints import ForcesFive
from tools.doubles.engines import TableTarget
from tools.doubles.model import ShortMemory, plain_greedy

START = PolicyStart(PolicySettings(name="plain"), StepCurve({1: 0.03}))
pytestmark = pytest.mark.driven


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_what_the_engine_decided_is_decided_again_bit_for_bit(tmp_path: Path, policy: str) -> None:
    (path,) = await record(tmp_path / "t", [SETTINGS[policy]])
    recorded = read(path)
    checked = check(recorded, POLICIES)
    assert checked.differences == [] and checked.decisions >= 60 / 17
    assert trace.emitted(recorded.entries) == 60
    assert recorded.header.settings.name == policy and recorded.header.settings.phi == 1.5


@pytest.mark.parametrize("policy", ["wanspec", "adaptive"])
async def test_losing_the_worker_half_way_is_replayed_too(tmp_path: Path, policy: str) -> None:
    (path,) = await record(tmp_path / "t", [SETTINGS[policy]], 80, dies_after=40)
    entries = read(path).entries
    assert check(read(path), POLICIES).differences == []
    gone = next(i for i, (_, event) in enumerate(entries) if event == events.WorkerChanged("w", "gone"))
    asked = [(i > gone, event.link) for i, (_, event) in enumerate(entries) if isinstance(event, Decided)]
    assert any(link for late, link in asked if not late) and not any(link for late, link in asked if late)


async def test_what_earlier_completions_taught_is_in_the_trace_and_replayed(tmp_path: Path) -> None:
    first, second = await record(tmp_path / "t", [SETTINGS["adaptive"]] * 2, 80)

    assert read(first).header.policy_state is None
    recorded = read(second)
    assert recorded.header.policy_state is not None
    assert check(recorded, POLICIES).differences == []
    forgotten = Trace(replace(recorded.header, policy_state=None), recorded.entries)
    assert check(forgotten, POLICIES).differences


async def test_a_row_count_that_is_tried_is_in_the_trace_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimators, "PROBE_EVERY", 4)
    target = TableTarget()
    target.pass_s = lambda rows: 0.03 if rows > 1 and target.verified <= 5 else 0.003  # slow at first
    (path,) = await record(tmp_path / "t", [SETTINGS["adaptive"]], 200, target=target)
    recorded = read(path)
    assert check(recorded, POLICIES).differences == []
    monkeypatch.setattr(adaptive, "Prices", lambda costs, token_s: Prices(replace(costs, probe=None), token_s))
    assert check(recorded, POLICIES).differences, "some were tried"


@pytest.mark.parametrize("method", METHODS)
async def test_sampled_completions_replay_too(tmp_path: Path, method: str) -> None:
    """The token that the target takes may be chance; what the policy made of it is not."""
    requests = [Speculation(policy=policy, verification=method) for policy in ("wanspec", "plain")]
    for path in await record(tmp_path / "t", requests, sampling=Sampling(temperature=1.0, seed=7)):
        assert check(read(path), POLICIES).differences == [] and trace.emitted(read(path).entries) == 60


@pytest.mark.parametrize("policy", ["wanspec", "adaptive"])
async def test_what_a_constraint_proposes_and_leaves_out_is_replayed_too(tmp_path: Path, policy: str) -> None:
    (path,) = await record(
        tmp_path / "t", [SETTINGS[policy]], 120, constraint=ForcesFive(PROMPT, (4, 7, 11, 20)), salt=False
    )
    entries = read(path).entries
    assert check(read(path), POLICIES).differences == []
    assert any(isinstance(event, trace.Guided | trace.Verified) and event.forced == [5] for _, event in entries)


@pytest.mark.claim("salted-ids-are-another-numbering-of-the-same-tokens")
async def test_salted_ids_are_another_numbering_of_the_same_tokens(tmp_path: Path) -> None:
    def answer(path: Path) -> list[int]:
        return [token for _, event in read(path).entries if isinstance(event, Verified) for token in event.tokens]

    (plain,) = await record(tmp_path / "plain", [SETTINGS["wanspec"]], salt=False)
    (salted,) = await record(tmp_path / "salted", [SETTINGS["wanspec"]])
    assert answer(plain) == plain_greedy(PROMPT, 60) != answer(salted)
    assert len(set(zip(answer(plain), answer(salted), strict=True))) == len(set(answer(plain)))
    numbers = sorted({t for _, e in read(salted).entries if isinstance(e, Frame | Verified) for t in e.tokens})
    assert numbers[0] == 1 and not read(plain).header.salted and read(salted).header.salted
    assert check(read(plain), POLICIES).differences == check(read(salted), POLICIES).differences == []


@pytest.mark.claim("salted-ids-are-another-numbering-of-the-same-tokens")
async def test_files_are_the_gateways_own_and_only_so_many_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    paths = await record(folder, [Speculation(policy="plain")] * 5, 3, keep=2)
    assert [read(path).header.request for path in paths] == [4, 5]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, *paths)] == [0o700, 0o600, 0o600]
    assert trace.unseal(paths[0].read_bytes())[1] == KEY.public


async def test_a_trace_that_is_too_long_ends_early_and_says_so(tmp_path: Path) -> None:
    (path,) = await record(tmp_path / "t", [SETTINGS["wanspec"]], 60, limit_bytes=4096)
    recorded = read(path)
    assert not recorded.header.complete
    assert 0 < trace.emitted(recorded.entries) < 60
    assert check(recorded, POLICIES).differences == []


async def test_an_answer_does_not_wait_for_a_disk_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "t"
    folder.mkdir(mode=0o700)
    recorder = Recorder(folder, KEY, salt=True, limit_bytes=2**21, keep=1000)
    folder.rmdir()
    for _ in range(2):
        generation = made("plain", listen=lambda new: recorder.listener(new, START))
        generation.handle(events.Admitted(len(PROMPT) - 1), 0.0)
        generation.decide(None, COSTS, 0.0)
        generation.handle(events.Ended("stopped"), 0.0)
    recorder.close()
    assert [record.levelname for record in caplog.records if "lost" in record.message] == ["WARNING"]


def test_a_folder_readable_by_others_is_refused_before_the_start(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="traces.folder.*chmod 700"):
        Recorder(tmp_path, KEY, salt=True, limit_bytes=2**21, keep=1000)


@pytest.mark.parametrize("method", METHODS)
async def test_a_trace_with_suggestions_replays_to_the_last_bit(tmp_path: Path, method: str) -> None:
    settings = Speculation(policy="adaptive", verification=method)
    sampling = Sampling(temperature=0.3, seed=7)
    target = TableTarget(model=ShortMemory())

    (path,) = await record(tmp_path / "t", [settings], 80, sampling=sampling, target=target)

    recorded = read(path)
    assert any(isinstance(event, trace.Suggested) for _, event in recorded.entries)
    assert check(recorded, POLICIES).differences == []
    assert trace.emitted(recorded.entries) == 80
