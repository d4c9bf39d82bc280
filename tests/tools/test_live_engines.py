"""The engines that sleep: they take the modelled time and say what the simulator's token process says."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation, TokensEvent
from cloud_gateway.core.verify.flatten import flatten
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model import Work
from edgespec.core.drafting.tree import SpeculationTree
from edgespec.core.errors import ConfigError
from edgespec.lab.link_model import LinkModel
from edgespec.lab.sim.process import child, draft
from edgespec.lab.sim.world import PROMPT_LEN, run
from tests.support.engines import engine_settings, started
from tools.sim.__main__ import main
from tools.sim.experiment import Arm
from tools.sim.live.engines import Answers, SleepingDraft, SleepingDrafter, SleepingTarget
from tools.sim.live.setting import PROMPT_TOKENS, Setting, read
from tools.sim.live.sleeper import Sleeper
from tools.sim.live.worker import settings_of
from tools.sim.process import WIDTH

SETTING = Setting({1: 2.0, 8: 4.0}, {1: 1.0, 16: 3.0}, {"match": 0.8}, "", 40)
INSTANT = msgspec.structs.replace(SETTING, verify_ms={1: 0.0}, draft_ms={1: 0.0})
EARLY_S = 0.0002
"""How much before its end a pass may return."""


@contextmanager
def takes(seconds: float) -> Iterator[None]:
    """At least that long; how much longer depends on the machine."""
    began = time.perf_counter()
    yield
    assert time.perf_counter() - began >= seconds - EARLY_S


class LateSystem:
    """A clock, and a sleep that always ends as late as requested."""

    def __init__(self, late_s: float) -> None:
        self.now, self.late_s = 0.0, late_s

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late_s


def test_a_sleeper_learns_how_late_it_is_woken() -> None:
    system = LateSystem(0.000150)
    sleeper = Sleeper(system.clock, system.sleep)
    for _ in range(200):
        sleeper.until(system.now + 0.01)
    assert abs(statistics.fmean(list(sleeper.errors)[-50:])) < 5e-6
    assert sleeper.summary()["p99_us"] == pytest.approx(90, abs=5), "what it was late at first stays in the summary"


def test_the_target_returns_process_tokens_and_takes_its_rows_time() -> None:
    target, process = SleepingTarget(SETTING, prefill_s=0.003), SETTING.kind.make(7, SETTING.length)
    slot, reused = target.open(SETTING.prompt(7))
    assert reused == 0
    with takes(0.003):
        target.prefill(slot, SETTING.prompt(7)[:1])
    tree = SpeculationTree(1, process.targets[0])
    right = tree.append(tree.root, process.targets[1], 0.1, 0.3)
    wrong = tree.append(tree.root, 5, 0.9, 0.3)
    flat = flatten(tree.root, [right, wrong, *(tree.append(right, i, 1.0, 0.3) for i in range(5))])
    assert len(flat) == 8
    with takes(0.004):
        (rows,) = target.verify([Work(slot, flat)])
    assert [rows.argmax[0], rows.argmax[1]] == list(process.targets[1:3])
    assert rows.entropy(1) == process.target_entropies[2]
    target.keep(slot, [0, 1])
    (rows,) = target.verify([Work(slot, flatten(tree.root, []))])
    assert rows.argmax == [process.targets[3]]


def test_the_target_has_as_many_slots_as_it_says() -> None:
    target = SleepingTarget(INSTANT)
    slots = [target.open(SETTING.prompt(seed))[0] for seed in range(target.slots)]
    with pytest.raises(IndexError):
        target.open(SETTING.prompt(99))
    target.close(slots[3])
    assert target.open(SETTING.prompt(99))[0] == slots[3]


def test_both_drafts_equal_the_simulators_draft_on_and_off_the_path() -> None:
    process, local, remote = SETTING.kind.make(3, SETTING.length), SleepingDraft(SETTING), SleepingDrafter(SETTING)
    prompt = SETTING.prompt(3)
    for engine in (local, remote):
        engine.open("r", prompt)
        engine.commit("r", process.targets[1:4])
    on, off = (process.targets[4],), (process.targets[4], 5, 6)
    states = [4, child(process, child(process, 4, 5), 6)]
    assert states[1] < 0
    with takes(0.001):
        said = local.draft("r", [on, off], WIDTH)
    assert said == [draft(process, state) for state in states] == remote.step("r", [on, off], WIDTH)
    assert [len(proposal.tokens) for proposal in remote.step("r", [on], 2)] == [2]
    assert (local.passes, remote.passes, remote.rows) == (1, 2, 3)


def test_requests_at_the_same_time_do_not_mix_their_answers() -> None:
    answers = Answers(SETTING)
    first, second = answers.of(SETTING.prompt(1)), answers.of(SETTING.prompt(2))
    assert first.process.targets != second.process.targets
    assert answers.of(SETTING.prompt(1)).process.targets == first.process.targets


async def test_the_engine_around_them_makes_the_simulators_rounds_and_passes() -> None:
    """Without a worker nothing depends on time, so live and simulated must be equal, not merely alike."""
    engine = Engine(SleepingTarget(INSTANT), SleepingDraft(INSTANT), engine_settings(policy="colocated", k=2))
    with started(engine):
        for seed in range(3):
            process = INSTANT.kind.make(seed, INSTANT.length)
            speculation = Speculation(offload="never")
            request = GenerationRequest(INSTANT.prompt(seed), 40, ignore_eos=True, speculation=speculation)
            tokens: list[int] = []
            async for event in engine.submit(request):
                if isinstance(event, TokensEvent):
                    tokens += event.tokens
                elif isinstance(event, DoneEvent):
                    usage = event.usage
            arm = Arm("colocated", "colocated", k=2)
            result = run(arm.controller(), [], process, LinkModel(0.0), SETTING.steps, 40, seed)
            assert tokens == list(process.targets[1:41])
            assert (usage.rounds, usage.local_draft_passes) == (result.rounds, result.local_passes)


def test_all_processes_of_a_replay_read_the_same_setting(tmp_path: Path) -> None:
    SETTING.write(tmp_path / "setting.json")
    again = read(tmp_path / "setting.json")
    assert again == SETTING and again.digest == SETTING.digest and again.steps == SETTING.steps
    assert len(SETTING.prompt(5)) == PROMPT_TOKENS == PROMPT_LEN
    assert msgspec.structs.replace(SETTING, length=41).digest != SETTING.digest


@pytest.mark.parametrize(("rule", "order"), [("bestfirst", "best-first"), ("algorithm2", "algorithm2")])
def test_the_worker_is_configured_as_the_simulators(rule: str, order: str, tmp_path: Path) -> None:
    setting = msgspec.structs.replace(SETTING, rule=rule, branching=4, sequences=16)
    draft = settings_of(setting, tmp_path, "wss://127.0.0.1:1").draft
    assert (draft.order, draft.branching, draft.theta, draft.sequences) == (order, 4, 0.0, 16)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--answers", "0"], "--answers takes 1 or more"),
        (["--target-ms", "-1"], "--target-ms -1.0: give milliseconds"),
        (["--rtt-ms", "15", "9999"], "--rtt-ms takes 0 to 2000"),
        (["--draft", "no-such-draft"], "has no draft 'no-such-draft', only "),
    ],
)
def test_bad_input_gets_one_sentence_and_no_process(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay-live", *options]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert said.startswith("error: ") and says in said
