"""A distilled draft: what is kept, what is learnt, going on after a stop, and the GGUF file that a worker loads."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cloud_gateway.models.target_model.load import load
from edgespec.core.errors import ConfigError, ModelError
from edgespec.lab.deep_check import _llama_logits
from edgespec.lab.gguf_layers import Layer, copy_layers
from edgespec.llamacpp.context import Context
from edgespec.shared.vocabfiles import gguf_tokenizer_digest
from tests.support.family_gguf import write_gguf
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import load_tiny, make_tiny_target, plain_logits
from tools.distill import measure, train
from tools.distill.__main__ import main
from tools.distill.export import export
from tools.distill.folder import Folder
from tools.distill.layers import checked, kept_layers, rate
from tools.distill.training import Lesson, Trainer, loss, pruned, right, trained
from tools.target_text import Batch, states, write

TOKENS = list(range(8, 40))


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tiny_gguf(tmp_path / "target.gguf", vocab=320, layers=4, sharpness=16)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"the {word} of {place}"}) + "\n" for word, place in PAIRS))
    return path


def lesson(target: Any, prompts: list[list[int]], count: int, ends: frozenset[int]) -> Lesson:
    batch = write(target, prompts, count, ends)
    return Lesson(batch, states(target, batch))


PAIRS = list(itertools.product(("name", "colour", "age"), ("a ship", "my house")))


def command(folder: Path, source: Path, prompts: Path, *more: object) -> list[str]:
    asked = ("--layers", 2, "--steps", 12, "--every", 4, "--batch", 2, "--max-tokens", 12, "--held-back", 1)
    return list(map(str, ("train", folder, "--source", source, "--prompts", prompts, *asked, "--device", "cpu", *more)))


def test_kept_layers_are_the_first_two_and_the_rest_evenly() -> None:
    assert kept_layers(10, 30) == (0, 1, 5, 8, 12, 15, 19, 22, 26, 29)
    assert kept_layers(3, 30) == (0, 1, 29)
    assert kept_layers(2, 30) == (0, 1)
    assert kept_layers(1, 30) == (0,)
    for total in range(2, 40):
        for count in range(1, total):
            kept = kept_layers(count, total)
            assert len(kept) == count
            assert checked(kept, total) == kept


@pytest.mark.parametrize("kept", [[], [1, 1], [2, 1], [-1, 2], [0, 4]])
def test_named_layers_must_be_there_and_in_order(kept: list[int]) -> None:
    with pytest.raises(ConfigError, match="0 to 3 in rising order"):
        checked(kept, 4)


def test_the_learning_rate_rises_then_falls_to_a_tenth() -> None:
    rates = [rate(step / 100, 2.0) for step in range(101)]
    assert rates[:6] == pytest.approx([0.0, 0.4, 0.8, 1.2, 1.6, 2.0])
    assert all(a >= b for a, b in itertools.pairwise(rates[5:]))
    assert rates[-1] == pytest.approx(0.2, abs=0.01)


def test_what_lies_in_padding_changes_neither_loss_nor_share(tmp_path: Path) -> None:
    target = load_tiny(make_tiny_target(tmp_path / "target", layers=4))
    tokens, _ = next(write(target, [[9, 10]], 10, frozenset()).sequences())
    one = lesson(target, [[9, 10], [20, 21, 22]], 10, frozenset({tokens[4]}))
    batch = one.batch
    student = pruned(target, (0, 2))
    before = float(loss(student, one).detach()), right(student, [batch])
    batch.tokens[~batch.mask] = 63
    batch.ranked[~batch.written] = 5
    one.states[~batch.mask] = 7
    assert (float(loss(student, one).detach()), right(student, [batch])) == before
    one.states[0, int(batch.mask[0].int().argmax())] += 1
    assert float(loss(student, one).detach()) != before[0], "a state of a prompt is learnt"


def test_a_pruned_model_has_the_kept_layers_and_leaves_the_target_alone(tmp_path: Path) -> None:
    target = load_tiny(make_tiny_target(tmp_path / "target", layers=4))
    before = plain_logits(target, TOKENS)
    student = pruned(target, (0, 3))
    assert len(student.model.layers) == student.config.num_hidden_layers == 2
    assert torch.equal(student.model.layers[1].mlp.up_proj.weight, target.model.layers[3].mlp.up_proj.weight)
    weights = trained(student)
    assert not any("embed" in name or "lm_head" in name for name in weights)
    for weight in weights.values():
        weight.data.zero_()
    assert torch.equal(plain_logits(target, TOKENS), before)
    assert torch.equal(plain_logits(pruned(target, range(4)), TOKENS), before)


def test_a_family_that_cannot_be_pruned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="choose llama"):
        pruned(load_tiny(make_tiny_target(tmp_path / "gpt2", architecture="gpt2")), (0,))


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    target = load_tiny(make_tiny_target(tmp_path / "target", layers=4, sharpness=2))
    drawn = np.random.default_rng(1)
    prompts = [drawn.integers(3, 64, size=6).tolist() for _ in range(16)]
    lessons = [lesson(target, prompts[at : at + 8], 16, frozenset({2})) for at in (0, 8)]
    batches = [one.batch for one in lessons]
    student = pruned(target, (0, 1, 2))
    before, share = [float(loss(student, one).detach()) for one in lessons], right(student, batches)[0]
    trainer = Trainer(student, lessons, 40, 3e-3, seed=1)
    for _ in range(40):
        trainer.advance()
    after = [float(loss(student, one).detach()) for one in lessons]
    assert all(late < early - 0.1 for late, early in zip(after, before, strict=True))
    assert right(student, batches)[0] > share


def test_a_run_that_was_stopped_ends_with_the_same_bits(source: Path, prompts: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(command(whole, source, prompts)) == 0
    real = Trainer.advance

    def stopped(self: Any, share: float) -> float:
        if self.step == 7:  # between two checkpoints
            raise KeyboardInterrupt
        return real(self, share)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "advance", stopped)
        assert main(command(parts, source, prompts)) == 130
    assert [file.name for file in sorted(parts.glob("step-*"))] == [
        "step-000004.safetensors",
        "step-000004.state.safetensors",
    ]
    assert main(command(parts, source, prompts)) == 0
    one, other = (load_file(folder / "step-000012.safetensors") for folder in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    first = load_file(whole / "step-000004.safetensors")
    assert any(not torch.equal(one[name], first[name]) for name in one)
    assert (whole / "draft.gguf").read_bytes() == (parts / "draft.gguf").read_bytes()


def test_a_run_that_is_asked_to_end_keeps_its_last_step(
    source: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(command(whole, source, prompts)) == 0
    real = Trainer.advance
    for number, step in ((signal.SIGINT, 5), (signal.SIGTERM, 9)):

        def asked(self: Any, share: float, number: int = number, step: int = step) -> float:
            if self.step == step:
                os.kill(os.getpid(), number)
            return real(self, share)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Trainer, "advance", asked)
            assert main(command(parts, source, prompts)) == 130
        assert f"stopped after step {step + 1}" in capsys.readouterr().out
        newest = Folder(parts).newest()
        assert newest is not None and newest.step == step + 1
    assert main(command(parts, source, prompts)) == 0
    assert (whole / "draft.gguf").read_bytes() == (parts / "draft.gguf").read_bytes()
    assert sorted(file.name[:11] for file in parts.glob("step-*.state.*")) == ["step-000010", "step-000012"]
    assert not list(parts.glob("step-000006*")), "of no multiple of --every"


def test_minutes_bring_the_learning_rate_down_by_their_end(
    source: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, rates = itertools.count(), list[float]()
    monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    real = Trainer.advance

    def noted(self: Any, share: float) -> float:
        found = real(self, share)
        rates.append(self._optimiser.param_groups[0]["lr"])
        return found

    monkeypatch.setattr(Trainer, "advance", noted)
    assert main(command(tmp_path / "run", source, prompts, "--minutes", 1, "--steps", 1000)) == 0
    assert len(rates) < 60 and max(rates) > 0.9e-3 and rates[-1] < 0.2e-3
    assert all(a >= b for a, b in itertools.pairwise(rates[rates.index(max(rates)) :]))


def test_a_damaged_checkpoint_is_one_sentence_and_the_one_before_serves(
    source: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(command(run, source, prompts)) == 0
    made = (run / "draft.gguf").read_bytes()
    for file, said in (
        (run / "step-000012.safetensors", "is not whole"),
        (run / "step-000012.state.safetensors", "is not whole"),
    ):
        file.write_bytes(file.read_bytes()[:-100])
        capsys.readouterr()
        assert main(command(run, source, prompts)) == ModelError.exit_code
        error = capsys.readouterr().err
        assert f"{file} {said}" in error and "delete it and run the same again" in error and error.count("\n") == 1
        file.unlink()
        assert main(command(run, source, prompts)) == 0
        assert "goes on after step 8" in capsys.readouterr().out
        assert (run / "draft.gguf").read_bytes() == made
    save_file({"other": torch.zeros(1)}, run / "step-000012.safetensors")
    assert main(command(run, source, prompts)) == ModelError.exit_code
    assert "step-000012 is no checkpoint of this run" in capsys.readouterr().err


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk on which no file gets larger than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_no_checkpoint(
    source: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert main(command(whole, source, prompts)) == 0
    state = (whole / "step-000012.state.safetensors").stat().st_size

    def fails(size: int, name: str) -> None:
        capsys.readouterr()
        with largest_file(size):
            status = main(command(run, source, prompts))
        error = capsys.readouterr().err
        assert status == ModelError.exit_code and error.count("\n") == 1
        assert f"{name}.safetensors cannot be written" in error and "run the same again" in error
        assert not list(run.glob("*.part"))

    fails(4000, "held-0000")
    real = Trainer.advance
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "advance", lambda self, share: interrupted() if self.step == 5 else real(self, share))
        assert main(command(run, source, prompts)) == 130
    fails(state - 1, "step-000008.state")
    newest = Folder(run).newest()
    assert newest is not None and newest.step == 4
    assert main(command(run, source, prompts)) == 0
    assert (whole / "draft.gguf").read_bytes() == (run / "draft.gguf").read_bytes()


def interrupted() -> float:
    raise KeyboardInterrupt


def test_prompts_that_the_target_makes_up_are_trained_on_and_kept(
    source: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, more = tmp_path / "plain", tmp_path / "more"
    assert main(command(plain, source, prompts)) == 0
    given = command(more, source, prompts, "--made-up", 6, "--together", 4)
    assert main([*given, "--minutes", "0.01"]) == 0
    made = [one for file in sorted(more.glob("prompts-*")) for one in json.loads(file.read_text())]
    assert 2 <= len(made) <= 6 and all(made)
    assert (more / "held-0000.safetensors").read_bytes() == (plain / "held-0000.safetensors").read_bytes()
    rows = [sum(len(load_file(file)["tokens"]) for file in run.glob("train-*")) for run in (plain, more)]
    assert rows == [5, 5 + len(set(made))]
    kept = (more / "train-0002.safetensors").stat().st_mtime_ns
    assert main(given) == 0 and (more / "train-0002.safetensors").stat().st_mtime_ns == kept
    (more / "prompts-0001.json").write_text("[")
    capsys.readouterr()
    assert main(given) == ModelError.exit_code and "prompts-0001.json cannot be used" in capsys.readouterr().err


def test_another_run_in_the_same_folder_is_refused(source: Path, prompts: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(command(tmp_path / "run", source, prompts, "--minutes", 0.01)) == 0
    assert main(command(tmp_path / "run", source, prompts, "--rate", 0.5)) == ConfigError.exit_code
    assert "holds a run with rate 0.001, not 0.5" in capsys.readouterr().err
    (tmp_path / "run" / "train-0000.safetensors").write_bytes(b"cut")
    assert main(command(tmp_path / "run", source, prompts)) == ModelError.exit_code
    assert "train-0000.safetensors is not whole" in capsys.readouterr().err


@pytest.mark.parametrize("architecture", ["llama", "llama-tied", "qwen2"])
def test_llama_cpp_computes_the_logits_of_the_trained_model(tmp_path: Path, architecture: Any) -> None:
    folder = make_tiny_target(tmp_path / "target", layers=4, architecture=architecture)
    target = load_tiny(folder)
    source = write_gguf(tmp_path / "source.gguf", target)
    student = pruned(target, (0, 2, 3))
    drawn = torch.Generator().manual_seed(1)
    for weight in trained(student).values():
        weight.data += 0.1 * weight.abs().mean() * torch.randn(weight.shape, generator=drawn)
    expected = plain_logits(student, TOKENS).numpy()
    for fmt, apart in (("f16", 0.01), ("q8_0", 0.15)):
        out = tmp_path / f"{fmt}.gguf"
        export(source, out, trained(student), (0, 2, 3), target.config, fmt)
        found = _llama_logits(out, [TOKENS])[0]
        assert np.linalg.norm(found - expected) < apart * np.linalg.norm(expected)
        assert gguf_tokenizer_digest(out) == gguf_tokenizer_digest(source)
    untrained = plain_logits(pruned(target, (0, 2, 3)), TOKENS).numpy()
    assert np.linalg.norm(untrained - expected) > 0.05 * np.linalg.norm(expected)


def test_a_worker_loads_the_draft_and_its_measures_are_the_models(
    source: Path, prompts: Path, tmp_path: Path, capsys: Any
) -> None:
    assert main(command(tmp_path / "run", source, prompts, "--format", "f16")) == 0
    draft = tmp_path / "run" / "draft.gguf"
    assert gguf_tokenizer_digest(draft) == gguf_tokenizer_digest(source)
    shown = capsys.readouterr().out
    assert "layers 0,1 of 4" in shown
    assert "step 12 of 12, loss" in shown
    assert (
        main(["measure", str(tmp_path / "run"), str(source), str(draft), "--steps", "2", "--json", str(tmp_path / "o")])
        == 0
    )
    target, made = json.loads((tmp_path / "o").read_text())
    assert (target["layers"], made["layers"], target["right"]) == (4, 2, 1.0)
    assert made["M parameters"] < target["M parameters"]
    student = pruned(load(source, "float32", "cpu").model, (0, 1))
    last = Folder(tmp_path / "run").newest()
    assert last is not None
    for name, weight in trained(student).items():
        weight.data.copy_(last.weights[name])
    first, among = right(student, map(Batch.of, Folder(tmp_path / "run").held_back()))
    assert made["right"] == pytest.approx(first, abs=0.1)
    assert made["in 4"] == pytest.approx(among, abs=0.1)
    assert f"after 12 steps: {first:.3f}" in shown


def test_right_counts_the_first_and_the_first_four(source: Path) -> None:
    context = Context(source, cells=64, sequences=1, batch=64, threads=1, outputs=64)
    logits = _llama_logits(source, [TOKENS])[0]
    ranked = np.argsort(-logits, axis=1)
    third, best = int(ranked[19, 2]), int(ranked[19, 0])
    assert measure.right(context, [([*TOKENS[:20], best], 1)]) == (1.0, 1.0)
    assert measure.right(context, [([*TOKENS[:20], third], 1)]) == (0.0, 1.0)
    assert measure.right(context, [([*TOKENS[:20], int(ranked[19, 9])], 1)]) == (0.0, 0.0)
    context.close()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--layers", 4), "leaves a draft 1 to 3"),
        (("--keep", "0,9"), "0 to 3 in rising order"),
        (("--held-back", 6), "has 6 prompts"),
    ],
)
def test_bad_input_is_one_sentence(
    source: Path, prompts: Path, tmp_path: Path, capsys: Any, more: tuple[object, ...], said: str
) -> None:
    assert main(command(tmp_path / "run", source, prompts, *more)) in (64, 66, 78)
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_replaced_weights_are_those_of_the_copy(tmp_path: Path, source: Path) -> None:
    given = {"blk.1.ffn_down.weight": np.ones((32, 64), np.float32)}
    copy_layers(source, tmp_path / "out.gguf", [Layer(0), Layer(3)], replaced=given)
    tensors = {tensor.name: np.asarray(tensor.data) for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    old = {tensor.name: np.asarray(tensor.data) for tensor in gguf.GGUFReader(source).tensors}
    assert (tensors["blk.1.ffn_down.weight"] == 1).all()
    assert np.array_equal(tensors["blk.0.ffn_down.weight"], old["blk.0.ffn_down.weight"])
    assert np.array_equal(tensors["blk.1.ffn_up.weight"], old["blk.3.ffn_up.weight"])
