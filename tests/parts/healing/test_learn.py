"""`edgespec learn` with tiny models: what it writes, keeps, resumes and refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gguf
import pytest
import torch

from edgespec.__main__ import main
from edgespec.core.errors import ModelError
from edgespec.llamacpp.convert import count_loaded_layers, requantise
from edgespec.parts.healing import command, measuring, output, state
from edgespec.parts.healing.student import Dimensions, Student, read_weights, require_same, written_formats
from edgespec.shared.vocabfiles import gguf_vocabulary
from tests.support.tiny_gguf import make_tiny_gguf

PROMPTS = [f"{word} {number}" for number in range(4) for word in ("a lamp", "the sea", "in rain", "one day", "dusk")]
OPTIONS = ("--max-tokens", "12", "--held-back", "4", "--threads", "1", "--rank", "8", "--rate", "0.01")
TRAINED = "blk.0.ffn_up.weight"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_tiny_gguf(tmp_path / "target.gguf", vocab=300, hidden=64)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return make_tiny_gguf(tmp_path / "draft.gguf", vocab=300, hidden=64, layers=1)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS))
    return path


def learn(draft: Path, target: Path, *more: object) -> int:
    return main(["learn", str(draft), "--target", str(target), *OPTIONS, *map(str, more)])


def test_a_few_steps_make_a_better_draft_in_llama_cpp(
    draft: Path, target: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Steps of tiny models take microseconds, so their order is chance; what is right is computed.
    monkeypatch.setattr(measuring, "is_better", lambda before, after: after.right > before.right)
    out = tmp_path / "healed.gguf"
    assert learn(draft, target, "--prompts", prompts, "--steps", 60, "--output", out, "--json") == 0

    report = json.loads(capsys.readouterr().out)
    assert report["output"] == str(out)
    assert report["after"]["right"] >= report["before"]["right"] + 0.05
    assert report["steps"] == 60
    assert gguf_vocabulary(out).digest == gguf_vocabulary(draft).digest
    assert count_loaded_layers(out) == 1


def test_only_the_trained_tensors_of_the_file_change(draft: Path, tmp_path: Path) -> None:
    weights = read_weights(draft)
    student = Student(Dimensions.of(draft), weights, weights, written_formats(draft, weights, None), 4, 1)
    student.projections[TRAINED].up.data += 0.1
    out = tmp_path / "out.gguf"
    output.write(draft, out, student)

    before = gguf.GGUFReader(draft)
    after = gguf.GGUFReader(out)
    assert [tensor.name for tensor in after.tensors] == [tensor.name for tensor in before.tensors]
    assert list(after.fields) == list(before.fields)
    for name, field in before.fields.items():
        assert after.fields[name].contents() == field.contents(), name
    changed = {
        old.name
        for old, new in zip(before.tensors, after.tensors, strict=True)
        if old.data.tobytes() != new.data.tobytes()
    }
    assert changed == {TRAINED}


def test_the_written_file_computes_what_the_student_computes(target: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft.q4_0.gguf"
    requantise(target, draft, "q4_0")
    weights = read_weights(draft)
    student = Student(Dimensions.of(draft), weights, read_weights(target), written_formats(draft, weights, None), 4, 1)
    student.projections[TRAINED].up.data += 0.05
    student.refresh()
    out = tmp_path / "out.gguf"
    output.write(draft, out, student)

    tokens = list(range(5, 25))
    near = require_same(student, out, tokens)
    with pytest.raises(ModelError, match="computed otherwise"):
        student.projections["blk.0.attn_v.weight"].base.neg_()
        student.refresh()
        require_same(student, out, tokens)
    assert near < 0.3


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(
    draft: Path, target: Path, prompts: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.gguf"
    parted = tmp_path / "parted.gguf"
    options = ("--prompts", prompts)
    learn(draft, target, *options, "--steps", 12, "--output", whole)

    stopped = stopped_after(draft, target, prompts, parted, 5)
    assert stopped == 128 + signal.SIGINT
    assert 0 < int(read_state(parted)["step.blk.0.attn_q.weight.up"]) < 12
    learn(draft, target, *options, "--steps", 12, "--output", parted, "--resume")

    resumed = read_state(parted)
    for name, tensor in read_state(whole).items():
        assert torch.equal(tensor, resumed[name]), name


def stopped_after(draft: Path, target: Path, prompts: Path, out: Path, steps: int) -> int:
    """Runs `learn`, of which step number `steps` is interrupted as by Ctrl-C; returns the exit code."""
    step = command.Course.step

    def interrupted(course: command.Course, share: float) -> float:
        loss = step(course, share)
        if course.counts.step == steps:
            os.kill(os.getpid(), signal.SIGINT)
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command.Course, "step", interrupted)
        return learn(draft, target, "--prompts", prompts, "--steps", 12, "--output", out)


def read_state(out: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(f"{out}.state")


def test_a_state_is_readable_by_its_owner_only(draft: Path, target: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    learn(draft, target, "--prompts", prompts, "--steps", 2, "--output", out)
    assert (tmp_path / "out.gguf.state").stat().st_mode & 0o777 == 0o600


def test_a_draft_that_is_not_better_is_not_kept(
    target: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = make_tiny_gguf(tmp_path / "twin.gguf", vocab=300, hidden=64)
    out = tmp_path / "out.gguf"
    assert learn(twin, target, "--prompts", prompts, "--steps", 1, "--output", out) == 1
    assert "not better than twin.gguf, so it was not kept" in capsys.readouterr().err
    assert not out.exists()
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_the_target_writes_prompts_itself(draft: Path, target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    learn(draft, target, "--steps", 2, "--output", out)
    saved = read_state(out)
    assert len(saved["held.lengths"]) == 4
    assert len(saved["passage.lengths"]) >= 4


def test_what_is_right_and_fast_is_better() -> None:
    def figures(right: float, step_ms: float) -> measuring.Figures:
        return measuring.Figures(tokens=100, right=right, among_four=0.9, claimed=0.5, step_ms=step_ms)

    before = figures(0.7, 8.0)
    assert measuring.is_better(before, figures(0.8, 8.0))
    assert not measuring.is_better(before, figures(0.7, 7.0))
    assert not measuring.is_better(before, figures(0.8, 10.0))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--resume"], "to resume from; leave --resume out"),
        (["--format", "q4_k"], "--format is q4_k; choose one of q4_0"),
        (["--minutes", "-1"], "--minutes is -1.0; give at least 0"),
        (["--held-back", "400"], "give more, or hold back less"),
    ],
)
def test_bad_options_get_a_sentence(
    draft: Path, target: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str],
    says: str,
) -> None:  # fmt: skip
    assert learn(draft, target, "--prompts", prompts, "--output", tmp_path / "out.gguf", *more) == 78
    assert says in capsys.readouterr().err


def test_another_tokenizer_is_refused(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_tiny_gguf(tmp_path / "other.gguf", vocab=280, hidden=64)
    assert learn(other, target) == 65
    assert "has 280 tokens instead of 300" in capsys.readouterr().err


def test_another_family_is_refused(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(target.read_bytes().replace(b"llama", b"mamba"))
    assert learn(other, target) == 66
    assert "of the family mamba, which `edgespec learn` does not compute" in capsys.readouterr().err


def test_a_state_of_another_draft_is_refused(
    draft: Path, target: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.gguf"
    options = ("--prompts", prompts, "--steps", 1, "--output", out)
    learn(draft, target, *options)
    out.unlink(missing_ok=True)
    assert learn(draft, target, *options) == 78
    assert "add --resume to go on, or remove it" in capsys.readouterr().err
    assert learn(target, target, *options, "--resume") == 78
    assert "is of a run with another draft" in capsys.readouterr().err


def test_a_full_disk_gets_a_sentence(draft: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "gone" / "out.gguf.state"
    with pytest.raises(ModelError, match="cannot be written .* make room there"):
        state.save(nowhere, {}, state.Saved(state.Progress(), [], [], []))


def test_a_missing_extra_is_named() -> None:
    script = "import sys; sys.modules['torch'] = None; from edgespec.__main__ import main; sys.exit(main(sys.argv[1:]))"
    words = ["learn", "draft.gguf", "--target", "target.gguf"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 69
    assert 'pip install "edgespec[learn]"' in done.stderr


def test_a_worker_imports_nothing_of_it() -> None:
    script = (
        "import sys, edgespec.worker.service; from edgespec.__main__ import build_parser; build_parser();"
        "print([n for n in sys.modules if n in ('torch', 'gguf', 'safetensors') or n.startswith("
        "'edgespec.parts.healing.') and not n.endswith('.verb')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_second_interrupt_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), command.asked_to_end() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked == [signal.SIGINT]
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(5)
