"""Training heads on a tiny target's own text: better than before, resumed, and measured on prompts held back."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cloud_gateway.core.sources.heads import Level
from cloud_gateway.models.drafts.eagle import load as load_eagle
from cloud_gateway.models.drafts.medusa import Heads, load
from cloud_gateway.models.target_model.load import folder_digest
from edgespec.core.errors import ConfigError, ModelError
from tests.support.tiny_target import Architecture, load_tiny, make_tiny_target, plain_logits
from tools import target_text
from tools.train_heads import __main__ as train_heads
from tools.train_heads import eagle, medusa
from tools.train_heads.medusa import IGNORED, fresh, labels, losses, measure
from tools.train_heads.text import Text, frequent, joined, states

WIDTH = 4


def known_text(folder: Path) -> Text:
    return joined(load_file(file) for file in sorted(folder.glob("known-*")))


def test_a_label_is_the_token_further_on_in_the_same_completion() -> None:
    heads = fresh(torch.zeros(9, WIDTH), torch.tensor([5, 6, 8]), 2, 2)
    found = labels(heads, torch.tensor([5, 6, 8, 7, -1, 6, 5]))
    assert found.tolist() == [
        [1, 2],
        [2, IGNORED],
        [IGNORED] * 2,
        [IGNORED] * 2,
        [IGNORED] * 2,
        [0, IGNORED],
        [IGNORED] * 2,
    ]


def test_heads_that_begin_expect_the_targets_next_token() -> None:
    embedding = torch.eye(WIDTH)
    heads = fresh(embedding, torch.tensor([0, 1]), 2, 2)
    assert heads(embedding[1]).argmax(-1).tolist() == [1, 1]


def test_only_right_tokens_of_the_same_completion_count() -> None:
    tokens = torch.tensor([0, 1, 1, -1, 2, 2])
    heads = Heads(torch.zeros(1, WIDTH, 1), torch.zeros(1, 1, WIDTH), torch.eye(WIDTH), torch.arange(WIDTH))
    expecting = torch.eye(WIDTH)[[1, 0, 3, 3, 2, 3]]
    expecting[1, 1] = 0.5
    (row,) = measure(heads, Text(expecting, tokens, tokens == tokens))
    assert row == {"head": 0, "places": 3, "right": pytest.approx(2 / 3, abs=1e-3), "in 3": 1.0}


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2"])
def test_states_are_what_the_output_embedding_was_given(architecture: Architecture, tmp_path: Path) -> None:
    model = load_tiny(make_tiny_target(tmp_path / "target", architecture=architecture))
    prompts = [[9, 10, 11], [20]]
    text = states(model, [prompts], 6)
    for prompt, (first, end) in zip(prompts, text.spans(), strict=True):
        tokens = [*prompt[:1], *text.tokens[first:end].tolist()]
        assert tokens[: len(prompt)] == prompt
        assert text.written[first : end + 1].tolist() == [False] * (len(prompt) - 1) + [True] * 7
        with torch.inference_mode():
            logits = model.get_output_embeddings()(text.states[first:end].float())
        torch.testing.assert_close(logits, plain_logits(model, tokens[:-1]), atol=0.3, rtol=0.05)
    assert text.completions().tokens.tolist() == [one for a, b in text.spans() for one in text.tokens[b - 6 : b + 1]]


def test_the_tokens_that_the_target_chose_most_often_are_kept() -> None:
    tokens = torch.tensor([1, 8, 5, 6, 5, 8, -1, 1, 1])
    written = torch.tensor([False, False, True, True, True, True, True, False, False])
    text = Text(torch.zeros(9, WIDTH), tokens, written)
    assert frequent(text, 9).tolist() == [5, 6, 8] and frequent(text, 1).tolist() == [5]
    with pytest.raises(ConfigError, match="too short to learn from"):
        frequent(text._replace(written=torch.zeros(9, dtype=torch.bool)), 9)


def test_an_eagle_head_is_measured_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that expects 1, 2, 3, ... after 0 is right until the text goes another way."""

    class Counting:
        next_place = 0

        def __init__(self, *_: object) -> None:
            self.number = 0

        def add(self, states: torch.Tensor) -> None: ...

        def read(self, tokens: list[int]) -> None:
            self.number = tokens[-1]

        def ahead(self) -> list[Level]:
            return [Level([self.number + step, 9], [0.5, 0.1], [step, -1]) for step in (1, 2, 3)]

    monkeypatch.setattr(eagle, "Line", Counting)
    tokens = torch.tensor([7, 0, 1, 2, 4, -1, 3, 3, -1])
    text = Text(torch.zeros(9, WIDTH), tokens, torch.tensor([False] + [True] * 5 + [False] + [True] * 2))
    assert eagle.measure(None, torch.zeros(1), text) == [  # type: ignore[arg-type]
        {"step": 0, "places": 5, "right": 0.4},
        {"step": 1, "places": 2, "right": 0.5},
        {"step": 2, "places": 1, "right": 0.0},
    ]


def test_the_command_trains_resumes_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, prompts, out = make_tiny_target(tmp_path / "model"), tmp_path / "prompts.jsonl", tmp_path / "heads"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in "abcdefgh"))
    options = ["medusa", "--target", str(folder), "--prompts", str(prompts), "--out", str(out), "--threads", "1"]
    options += ["--max-tokens", "24", "--rank", "8", "--json", str(tmp_path / "figures")]

    def run(steps: str, *more: str) -> tuple[int, float]:
        """Exit status, and how often the first head is right on what it was trained on."""
        status = train_heads.main([*options, "--minutes", "10", "--steps", steps, *more])
        assert status or json.loads((tmp_path / "figures").read_text())["held"] == 2 * 24
        rows = measure(load(out, folder_digest(folder)), known_text(tmp_path / "heads.text").completions())
        return status, float(str(rows[0]["right"]))

    status, untrained = run("0")
    before = load(out, folder_digest(folder))
    assert status == 0 and not before.up.any()
    written = (tmp_path / "heads.text" / "known-0000.safetensors").stat().st_mtime_ns
    status, trained = run("300")
    after = load(out, folder_digest(folder))
    assert (
        status == 0
        and after.up.any()
        and (tmp_path / "heads.text" / "known-0000.safetensors").stat().st_mtime_ns == written
    )
    assert trained > untrained + 0.2
    run("0")
    assert torch.equal(load(out, folder_digest(folder)).up, after.up), "it goes on from where it was"
    capsys.readouterr()
    assert run("0", "--max-tokens", "25")[0] != 0
    assert "heads.text holds a run with max_tokens 24, not 25" in capsys.readouterr().err


def test_training_an_eagle_head_lowers_its_loss(tmp_path: Path) -> None:
    folder, prompts, out = make_tiny_target(tmp_path / "model"), tmp_path / "prompts.jsonl", tmp_path / "eagle"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in "abcdefgh"))
    options = ["eagle", "--target", str(folder), "--prompts", str(prompts), "--out", str(out), "--threads", "1"]
    options += ["--max-tokens", "24", "--minutes", "10", "--json", str(tmp_path / "figures")]
    embedding = load_tiny(folder).get_input_embeddings().weight.detach()

    def run(steps: str) -> tuple[float, float]:
        """The loss, and how often the head's first token is right on what it was trained on."""
        assert train_heads.main([*options, "--steps", steps]) == 0
        text, head = known_text(tmp_path / "eagle.text"), load_eagle(out, folder_digest(folder))
        torch.manual_seed(0)
        with torch.inference_mode():
            loss = float(eagle.losses(head, embedding, text)())
        return loss, float(str(eagle.measure(head, embedding, text)[0]["right"]))

    (loss_before, untrained), (loss_after, trained) = run("0"), run("200")
    assert loss_after < 0.7 * loss_before
    assert trained > 0.6 > untrained + 0.3
    after = load_eagle(out, folder_digest(folder))
    run("0")
    assert torch.equal(load_eagle(out, folder_digest(folder)).join, after.join), "it goes on from where it was"


def test_prompts_that_the_target_makes_up_are_never_held_back(tmp_path: Path) -> None:
    folder, prompts = make_tiny_target(tmp_path / "model"), tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in "abcdefgh"))
    made = {}
    for count in (0, 20):
        out = tmp_path / f"{count}"
        options = ["medusa", "--target", str(folder), "--prompts", str(prompts), "--out", str(out), "--threads", "1"]
        assert train_heads.main([*options, "--max-tokens", "8", "--steps", "1", "--made-up", str(count)]) == 0
        text = out.with_name(out.name + ".text")
        made[count] = [one for file in sorted(text.glob("prompts-*")) for one in json.loads(file.read_text())]
        assert len(known_text(text).spans()) == 6 + len(set(made[count]))
        assert len(joined(load_file(file) for file in text.glob("held-*")).spans()) == 2
    assert not made[0] and 10 <= len(made[20]) <= 20


def test_what_was_written_and_learnt_before_an_interruption_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, prompts, out = make_tiny_target(tmp_path / "model"), tmp_path / "prompts.jsonl", tmp_path / "heads"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in "abcdefgh"))
    options = ["medusa", "--target", str(folder), "--prompts", str(prompts), "--out", str(out), "--threads", "1"]
    options += ["--max-tokens", "24", "--rank", "8", "--minutes", "10", "--steps", "5"]
    real, calls = target_text.write, list[int]()

    def stopped(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target_text, "write", stopped)
        assert train_heads.main(options) == 130
    text = tmp_path / "heads.text"
    assert sorted(file.name for file in text.iterdir()) == ["known-0000.safetensors", "settings.json"]

    def asked(heads: Heads, text: Text) -> Callable[[], torch.Tensor]:
        loss = losses(heads, text)
        return lambda: (os.kill(os.getpid(), signal.SIGINT), loss())[1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(medusa, "losses", asked)
        assert train_heads.main(options) == 130
    assert load(out, folder_digest(folder)).up.any() and "stopped after 1 steps" in capsys.readouterr().err
    assert train_heads.main(options) == 0
    for damaged, said in ((text / "known-0000.safetensors", "is not whole"), (out, "cannot be read")):
        kept = damaged.read_bytes()
        damaged.write_bytes(kept[:-50])
        assert train_heads.main(options) == ModelError.exit_code
        error = capsys.readouterr().err
        assert said in error.splitlines()[-1] and "Traceback" not in error
        damaged.write_bytes(kept)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))  # as on a full disk
    try:
        status = train_heads.main(options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert status == ModelError.exit_code and "cannot be written" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*.part")) and load(out, folder_digest(folder)).up.any()
