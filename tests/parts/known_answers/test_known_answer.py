"""The trial of llama.cpp in a child process: each kind of fault has its sentence, and a passed one is remembered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cloud_gateway.parts import known_answers as gateway_part
from cloud_gateway.process import config as gateway_config
from cloud_gateway.process.loading import load_models
from edgespec.__main__ import main
from edgespec.core.errors import EdgespecError, LibraryError
from edgespec.parts import known_answers as worker_part
from edgespec.parts.known_answers import child, trial
from edgespec.parts.known_answers.trial import ALPHABET, MAX_DIFFERENCE, known_tokens, require_known_answer
from edgespec.shared.settings import overridden
from edgespec.worker import config as worker_config
from edgespec.worker.service import load_drafter
from tests.parts.known_answers.faulty_llama import CRASH, HANG, SLOW, WRONG, WRONG_ROW, plant
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target
from tests.support.torch_targets import torch_settings
from tests.support.verbs import needs_verb


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of passed trials: nothing yet."""
    monkeypatch.setattr(trial, "cache_dir", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of-processes"))
    return tmp_path / "known-answers"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_gguf(tmp_path / "tiny.gguf")


def sentence(model: Path, hang_s: float = 60.0) -> str:
    """The one of the error."""
    with pytest.raises(LibraryError) as error:
        require_known_answer(model, hang_s=hang_s)
    assert error.value.exit_code == 70 and "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.claim("a-llama-cpp-that-computes-wrongly-is-not-used")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (WRONG, "computes other logits in a batch than in single steps"),
        ("sys.stderr.write('GGML_ASSERT(x) failed\\n'); " + CRASH[: CRASH.index("signal.raise")] + "os.abort()",
         "is killed by SIGABRT (GGML_ASSERT(x) failed)"),
    ],
)  # fmt: skip
def test_a_fault_is_one_sentence_with_library_processor_and_cure(
    fault: str, says: str, model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, tmp_path / "planted", fault)
    said = sentence(model)
    assert said.startswith(f"llama.cpp {says}") and "in a trial with tiny.gguf" in said
    assert "/llama_cpp/lib/libggml-cpu.so" in said and "llama-cpp-python==" in said
    assert trial.processor() in said and "-m pip install --force-reinstall --no-cache-dir" in said
    assert not cache.exists()  # the next start tries again


@pytest.mark.claim("a-llama-cpp-that-computes-wrongly-is-not-used")
@pytest.mark.parametrize("row", [4, 19, 34])
def test_one_wrong_row_of_a_batch_is_refused(
    row: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is the last of its sequence, so that no other row attends to it; they lie in three tiles of 16."""
    rows = child.SEQUENCES * child.TOKENS
    assert rows == 35 and (row + 1) % child.TOKENS == 0

    plant(monkeypatch, tmp_path / "planted", WRONG_ROW.format(row=row))
    assert "computes other logits in a batch than in single steps" in sentence(model)


@pytest.mark.claim("a-llama-cpp-that-computes-wrongly-is-not-used")
def test_a_hang_is_ended_and_a_slow_model_is_not(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tmp_path / "planted", SLOW)
    require_known_answer(model, hang_s=2.0)  # it takes longer: six passes of 0.4 s
    other = make_tiny_gguf(tmp_path / "other.gguf", seed=1)
    plant(monkeypatch, tmp_path / "planted", HANG)
    assert "makes no progress for 1 s" in sentence(other, hang_s=1.0)


def test_a_trial_is_remembered_for_library_model_and_layers(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert require_known_answer(model)
    plant(monkeypatch, tmp_path / "planted", WRONG)
    assert require_known_answer(model), "it does not run again"
    sentence(make_tiny_gguf(tmp_path / "other.gguf", seed=1))
    monkeypatch.setattr(trial, "processor", lambda: "another")
    sentence(model)
    monkeypatch.undo()
    monkeypatch.setattr(trial, "cache_dir", lambda: tmp_path)
    (passed,) = cache.iterdir()
    assert trial._passed(Path(sys.prefix), model, 0) != passed
    assert trial._passed(Path(sys.prefix), model, 0) != trial._passed(Path(sys.prefix), model, 9)


@pytest.mark.claim("a-llama-cpp-that-computes-wrongly-is-not-used")
def test_the_demos_models_are_held_against_stored_tokens(
    quantised_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known_tokens(quantised_model.with_name("other.gguf")) == ()
    monkeypatch.setattr(trial, "known_tokens", lambda _: (*ALPHABET[:-1], ALPHABET[0]))
    assert "other tokens than those stored" in sentence(quantised_model)


def test_no_number_counts_as_a_difference() -> None:
    assert trial._judged({"difference": float("nan"), "after": []}, ()) is not None
    assert trial._judged({"difference": MAX_DIFFERENCE, "after": []}, ()) is None


def test_who_ends_the_child_does_not_condemn_the_library(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, tmp_path / "planted", CRASH.replace("SIGILL", "SIGKILL"))
    with pytest.raises(EdgespecError, match="was ended by SIGKILL") as error:
        require_known_answer(model)
    assert error.value.exit_code == 75 and not cache.exists()


@pytest.mark.claim("a-llama-cpp-that-computes-wrongly-is-not-used")
def test_a_worker_does_not_load_what_failed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tmp_path / "planted", WRONG)
    with pytest.raises(LibraryError):
        load_drafter(overridden(worker_config.schema([worker_part.PART])(), {"draft.model": str(model)}))


@pytest.mark.claim("a-llama-cpp-that-computes-wrongly-is-not-used")
def test_a_gateway_loads_no_target_that_failed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tmp_path / "planted", CRASH)
    given = {"target.model": str(model), "local_draft.model": ""}
    with pytest.raises(LibraryError, match="is killed by SIGILL"):
        load_models(overridden(gateway_config.schema([gateway_part.PART])(), given))


@pytest.mark.claim("a-llama-cpp-that-computes-wrongly-is-not-used")
def test_a_gateway_loads_no_draft_that_failed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tmp_path / "planted", CRASH)
    folder = make_tiny_target(tmp_path / "target")
    settings = torch_settings({"target.model": str(folder), "local_draft.model": str(model)})
    with pytest.raises(LibraryError, match="is killed by SIGILL"):
        load_models(settings)


@needs_verb("models")
def test_a_check_of_a_model_tries_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["models", "check", str(model)]
    plant(monkeypatch, tmp_path / "planted", CRASH)
    assert main(command) == 70 and "is killed by SIGILL" in capsys.readouterr().err


@needs_verb("models")
def test_a_file_that_is_no_model_is_not_called_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    assert main(["models", "check", str(tmp_path / "no.gguf")]) == 66
    assert "llama.cpp cannot load" in capsys.readouterr().err
