"""Loading a target: GGUF is converted once, and any fault of a model is an error of one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cloud_gateway.models.target_model.load import NOTE, folder_digest, target_cache
from cloud_gateway.models.text import Text
from cloud_gateway.parts.torch_engine import load as loading
from cloud_gateway.parts.torch_engine.load import load
from edgespec.core.errors import ModelError
from edgespec.models.drafts import make_draft
from edgespec.shared.hf_vocabulary import hf_vocabulary
from edgespec.shared.vocabfiles import gguf_vocabulary
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target, plain_logits
from tests.support.tiny_tokenizer import EOS_ID

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Converted models of these tests go to a folder that is thrown away."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return target_cache()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", vocab=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("folder"))


def test_a_gguf_file_is_converted_once_and_found_again(
    gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(gguf, "float32", "cpu")
    digest = hashlib.sha256(gguf.read_bytes()).digest()
    assert first.folder == cache / f"{digest.hex()[:16]}-float32"
    assert first.model_digest == digest
    assert first.tokenizer_digest == gguf_vocabulary(gguf).digest == hf_vocabulary(first.folder).digest
    assert first.model.dtype == torch.float32
    assert first.model.generation_config.eos_token_id == [EOS_ID]

    def again(*_: object) -> None:
        raise AssertionError("converted a second time")

    monkeypatch.setattr(loading, "_convert", again)
    second = load(gguf, "float32", "cpu")
    assert torch.equal(plain_logits(first.model, [5, 6, 7]), plain_logits(second.model, [5, 6, 7]))
    assert [path.name for path in cache.iterdir()] == [first.folder.name]


@pytest.mark.parametrize("fmt", ["f32", "q4_0"])
def test_each_dtype_has_its_own_conversion_of_the_same_weights(
    fmt: str, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    if fmt == "f32":
        shutil.copyfile(gguf, path)
    else:
        make_draft(gguf, path, fmt=fmt)
    unpacked = list[str]()
    unpack = AutoModelForCausalLM.from_pretrained

    def noted(*given: Any, **options: Any) -> Any:
        unpacked.append(options["dtype"])
        return unpack(*given, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noted)
    half = load(path, "bfloat16", "cpu").model
    assert set(unpacked) == {"bfloat16"}, "never as a whole in float32, which takes twice the memory"
    whole = load(path, "float32", "cpu").model
    assert (half.dtype, whole.dtype) == (torch.bfloat16, torch.float32)
    weights = half.state_dict()
    assert all(torch.equal(weights[name], weight.bfloat16()) for name, weight in whole.state_dict().items())


def test_a_converted_model_computes_what_llama_cpp_computes(gguf: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    reference = llama_cpp.Llama(str(gguf), n_ctx=64, logits_all=True, verbose=False, n_threads=1)
    loaded = load(gguf, "float32", "cpu")
    text = "the cat in the hat 1999 é"
    tokens = reference.tokenize(text.encode(), add_bos=False)
    assert Text(loaded.tokenizer).encode(text) == tokens
    reference.eval(tokens)
    expected = np.array(reference.scores[: len(tokens)])
    np.testing.assert_allclose(plain_logits(loaded.model, tokens).numpy(), expected, atol=0.02)


def test_a_half_written_or_older_conversion_is_made_again(gguf: Path) -> None:
    folder = load(gguf, "float32", "cpu").folder
    (folder / "model.safetensors").write_bytes(b"cut short")
    note = json.loads((folder / NOTE).read_text())
    (folder / NOTE).write_text(json.dumps(note | {"conversion": 0}))
    assert load(gguf, "float32", "cpu").model.dtype == torch.float32


def test_a_failed_conversion_leaves_nothing_behind(gguf: Path, cache: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[:-5000])
    with pytest.raises(ModelError, match=r"cut\.gguf is corrupt or cannot be used"):
        load(cut, "float32", "cpu")
    assert list(cache.iterdir()) == []


def test_a_folder_is_loaded_where_it_is(folder: Path, cache: Path) -> None:
    loaded = load(folder, "bfloat16", "cpu")
    assert loaded.folder == folder
    assert loaded.model_digest == hashlib.sha256((folder / "model.safetensors").read_bytes()).digest()
    assert loaded.tokenizer_digest == hf_vocabulary(folder).digest
    assert not cache.exists()


def test_the_digest_of_several_weight_files_covers_each_of_them(folder: Path, tmp_path: Path) -> None:
    twice = shutil.copytree(folder, tmp_path / "twice")
    (twice / "second.safetensors").write_bytes(b"more")
    before = folder_digest(twice)
    (twice / "second.safetensors").write_bytes(b"less")
    assert len({before, folder_digest(twice), folder_digest(folder)}) == 3


def test_what_is_wrong_with_a_model_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not a header")
    encoder = shutil.copytree(folder, tmp_path / "encoder")
    (encoder / "config.json").write_text(json.dumps({"model_type": "t5"}))
    unknown = shutil.copytree(folder, tmp_path / "unknown")
    (unknown / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    cases = {
        tmp_path / "missing.gguf": "cannot be read",
        empty: r"config\.json and \*.safetensors",
        text: "not a usable GGUF file",
        broken: "corrupt or cannot be used",
        encoder: "not a causal language model",
        unknown: "cannot be used|not a causal language model",
    }
    for path, sentence in cases.items():
        with pytest.raises(ModelError, match=sentence) as caught:
            load(path, "float32", "cpu")
        assert "\n" not in str(caught.value), path
        assert str(path) in str(caught.value), path


def test_a_cache_that_cannot_be_written_is_one_sentence(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match="cannot be written"):
        load(gguf, "float32", "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_cuda_device_is_one_sentence(folder: Path) -> None:
    with pytest.raises(ModelError, match="no CUDA device"):
        load(folder, "float32", "cuda")


@pytest.mark.live
def test_loading_says_nothing_on_the_terminal(gguf: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from cloud_gateway.parts.torch_engine.load import load;"
        "load(Path(sys.argv[1]), 'bfloat16', 'cpu')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(gguf)], cwd=ROOT, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
