"""The main job on real models and sockets: pairing, a delayed link, remote drafts, a worker killed and come back."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from edgespec.core.protocol.worth import WorkerFigures, verdict
from edgespec.shared import models
from edgespec_lab.deep_target import deepen_gguf
from edgespec_lab.rig import Rig

pytestmark = pytest.mark.live
RTT_MS = 20.0
BLOCKS = 4
"""Those of the target for each one of the draft: a pass takes four times as long, and gives the same tokens."""
PROMPTS = (
    "Explain in a few sentences why leaves turn red in autumn.",
    "Write a short story about a lighthouse keeper and a whale.",
    "List six tools that a carpenter needs and say what each is for.",
)


LOOK_S = 0.005
MIN_S = 0.1
"""By which a thread without work comes back late only if the machine, or all of these processes, stood still."""


class Standstills:
    """A thread that notes when it came back late; a context manager. Ask once the block has been left."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Standstills:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        left = False
        before = time.monotonic()
        while not left:
            left = self._left.wait(LOOK_S)
            now = time.monotonic()
            if now - before > MIN_S:
                self._spans.append((before, now))
            before = now

    def without(self, start: float, end: float) -> float:
        """Seconds between two monotonic times in which the machine did not stand still."""
        return end - start - sum(max(min(end, last) - max(start, first), 0.0) for first, last in self._spans)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    draft = str(models.quantised())
    cores = (0, 1) if (os.cpu_count() or 1) > 1 else (None, None)
    folder = tmp_path_factory.mktemp("stage")
    target = folder / "target.gguf"
    deepen_gguf(Path(draft), target, BLOCKS)
    rig = Rig(folder, str(target), draft, draft, exact=True, rtt_ms=RTT_MS, cores=cores)
    with rig.linked() as stage:
        yield stage


@pytest.fixture(autouse=True)
def worker_is_linked(stage: Rig) -> None:
    """A test that failed half-way must not make the next ones fail."""
    if not stage.runs("worker"):
        stage.start_worker()


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_remote_drafts_save_passes_and_change_nothing(stage: Rig, prompt: str) -> None:
    plain = stage.chat(prompt, 48, policy="plain")
    remote = stage.chat(prompt, 48, policy="wanspec", phi=3.0)
    usage = remote["usage"]["edgespec"]
    assert text_of(remote) == text_of(plain)
    assert usage["rounds"] < plain["usage"]["edgespec"]["rounds"] * 0.8
    assert usage["accepted"].get("worker", 0) > 0 and usage["frames"]["used"] > 0 and usage["why_off"] is None


def test_worker_and_gateway_print_the_same_figures_of_one_run(stage: Rig) -> None:
    stage.chat(PROMPTS[0], 48, policy="wanspec", phi=3.0)
    deadline = time.monotonic() + 20
    while (books := stage.worker_command("status", "--json")["books"]) is None or not books["alone_ms"]:
        assert time.monotonic() < deadline
    (row,) = stage.gateway_command("workers", "list", "--json")["workers"]
    assert row["books"] == books and books["accepted"] > 0
    assert row["accepted"] == books["accepted"]
    status = stage.gateway_command("status", "--json")
    assert status["helps"] == {row["name"]: verdict(WorkerFigures(**books))}
    assert status["accepted"]["worker"] == books["accepted"]


def test_a_key_that_does_not_allow_offloading_keeps_its_prompts_here(stage: Rig) -> None:
    private = stage.gateway_command("keys", "create", "--name", "private", "--json")["key"]
    client = openai.OpenAI(base_url=stage.api, api_key=private)
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": PROMPTS[0]}],
        max_tokens=16,
        extra_body={"edgespec": {"usage": True}},
    )
    usage = answer.usage.model_extra["edgespec"]
    assert usage["frames"]["received"] == 0 and usage["why_off"]


def test_a_killed_worker_costs_no_text_no_error_and_little_time(stage: Rig) -> None:
    """Must show 3: the stall is at most one round trip plus one target step beyond normal."""
    prompt = PROMPTS[1]
    count = 96
    expected = text_of(stage.chat(prompt, count, policy="plain"))
    text = ""
    killed_at = 0
    at = [time.monotonic()]
    with Standstills() as standstills:
        for chunk in stage.stream(prompt, count, policy="wanspec", phi=3.0):
            piece = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            if not piece:
                continue
            text += piece
            at.append(time.monotonic())
            if len(at) == 14:
                stage.stop("worker", signal.SIGKILL)
                killed_at = len(at)
                at[-1] = time.monotonic()
    gaps = [standstills.without(a, b) for a, b in itertools.pairwise(at[1:])]
    normal = gaps[: killed_at - 2]
    after = gaps[killed_at - 2 :]
    step = statistics.median(normal)
    allowed = max(normal) + RTT_MS / 1e3 + 2 * step
    assert text == expected
    assert max(after) <= allowed, f"stalled for {max(after):.3f} s, allowed {allowed:.3f}"
    stage.start_worker()
    again = stage.chat(prompt, 32, policy="wanspec", phi=3.0)["usage"]["edgespec"]
    assert again["frames"]["used"] > 0, "after a restart the worker is used again without anyone's help"


def test_a_pause_moves_requests_on_and_resuming_brings_them_back(stage: Rig) -> None:
    stage.worker_command("pause", "--reason", "its owner is back", "--json")
    try:
        usage = stage.chat(PROMPTS[2], 16, policy="wanspec")["usage"]["edgespec"]
        assert usage["frames"]["used"] == 0 and usage["why_off"]
    finally:
        stage.worker_command("resume", "--json")
    assert stage.chat(PROMPTS[2], 24, policy="wanspec", phi=3.0)["usage"]["edgespec"]["frames"]["used"] > 0


def test_a_revoked_worker_is_cut_off_at_once_and_stops_for_good(stage: Rig, tmp_path: Path) -> None:
    listed = stage.gateway_command("workers", "list", "--json")["workers"]
    stage.gateway_command("workers", "revoke", listed[0]["id"], "--json")
    deadline = time.monotonic() + 30
    while "revoked" not in stage.log("worker").splitlines()[-1] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "revoked" in stage.log("worker").splitlines()[-1] and "Traceback" not in stage.log("worker")
    answer = stage.chat(PROMPTS[0], 16, policy="wanspec")
    assert answer["usage"]["edgespec"]["frames"]["received"] == 0
