"""`edgespec_lab.train`: each kind learns, goes on after a stop with the same bits, and refuses what it cannot do."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edgespec.models.drafts import make_draft
from edgespec_lab.train.__main__ import main
from edgespec_lab.train.loop import Trainer
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target

PROMPTS = [f"the {word} of {place}" for word in ("name", "colour", "age") for place in ("a ship", "my house")]
Command = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return make_tiny_gguf(tmp_path / "target.gguf", vocab=320, layers=4, sharpness=16)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))

    model = make_tiny_target(tmp_path / "target", vocab=320)

    def made(kind: str, folder: Path, *more: object) -> list[str]:
        asked = ["--target", model, "--prompts", prompts, "--steps", 12, "--max-tokens", 12, "--held-back", 1]
        return list(map(str, [kind, folder, *asked, "--threads", 1, "--device", "cpu", *more]))

    return made


def interrupted_at(patch: pytest.MonkeyPatch, step: int, how: Callable[[], object]) -> None:
    """Before this step something happens."""
    real = Trainer.advance

    def advance(self: Trainer, share: float) -> float:
        if self.step == step:
            how()
        return real(self, share)

    patch.setattr(Trainer, "advance", advance)


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_each_kind_learns_what_the_target_writes(kind: str, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "figures"
    loss = dict[int, float]()
    for steps in (1, 150):
        given = command(kind, tmp_path / str(steps), "--steps", steps, "--rate", "5e-3", "--json", out)
        assert main(given) == 0
        found = json.loads(out.read_text())
        loss[steps] = found["loss"]
        assert found["steps"] == steps and found["held"] == 12 and found["rows"]
    assert loss[150] < 0.7 * loss[1]


@pytest.mark.parametrize(("kind", "number"), [("medusa", signal.SIGINT), ("eagle", signal.SIGTERM)])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    kind: str, number: int, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    assert main(command(kind, whole)) == 0
    with pytest.MonkeyPatch.context() as patched:
        interrupted_at(patched, 7, lambda: os.kill(os.getpid(), number))
        assert main(command(kind, parts)) == 130
    assert "stopped after step 8" in capsys.readouterr().out
    assert main(command(kind, parts)) == 0
    assert "goes on after step 8" in capsys.readouterr().out
    for name in (f"{kind}.checkpoint", f"{kind}.safetensors"):
        one, other = (load_file(folder / name) for folder in (whole, parts))
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_drafts_are_measured_by_the_text_that_was_held_back(command: Command, gguf: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    compared = tmp_path / "compared"
    shorter = tmp_path / "shorter.gguf"
    make_draft(gguf, shorter, [1, 2])
    assert main(command("medusa", run, "--target", gguf)) == 0
    given = ["measure", run, gguf, shorter, "--steps", 2, "--json", compared]
    assert main(list(map(str, given))) == 0
    target, made = json.loads(compared.read_text())
    assert (target["layers"], made["layers"], target["tokens"]) == (4, 2, 12)
    assert made["M parameters"] < target["M parameters"]
    assert target["right"] > 0.8 > made["right"]
