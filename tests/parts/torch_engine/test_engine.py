"""When torch computes a target, what it refuses, the memory that it takes, and every family paired with each."""

from __future__ import annotations

import importlib.util
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.headers import Need
from cloud_gateway.parts.torch_engine import PART, engine, linear
from cloud_gateway.parts.torch_engine.engine import TorchEngine, TorchSection, dtype_for
from cloud_gateway.parts.torch_engine.headers import FAMILIES
from cloud_gateway.process import targets
from cloud_gateway.process.config import GatewaySettings, schema
from cloud_gateway.process.loading import engine_settings, load_models
from cloud_gateway.process.targets import check_models, engine_for
from edgespec.core.errors import ConfigError, ModelError, TokenizerMismatch
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.settings import overridden, parse
from tests.support.engines import complete, started
from tests.support.families import ARCHITECTURES, SENTENCEPIECE, VOCAB, make, pieces, write_gguf
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target
from tests.support.tiny_tokenizer import tiny_tokenizer

TORCH = TorchEngine()
PROMPT = tuple(1 + i % 50 for i in range(20))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def configured(model: Path, draft: Path | str = "", **more: Any) -> GatewaySettings:
    values = {"target.model": str(model), "local_draft.model": str(draft)}
    values |= {key if "." in key else f"target.{key}": value for key, value in more.items()}
    return overridden(schema([PART])(), values)


@pytest.mark.parametrize("device", ["gpu", "cuda:0\\n"])
def test_a_wrong_device_is_refused_with_its_line_and_what_is_allowed(device: str) -> None:
    with pytest.raises(ConfigError, match=r'^x.toml, line 2: .*"auto", "cpu", "cuda" or "cuda:N"'):
        parse(f'[target]\ndevice = "{device}"', schema([PART]), "x.toml")


def test_a_gguf_file_without_a_gpu_runs_on_llama_cpp(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_cuda", lambda: False)
    assert engine_for(configured(model), model) == "llamacpp"
    assert engine_for(configured(model.parent), model.parent) == "torch", "a folder"
    assert engine_for(configured(model, dtype="float32"), model) == "torch"
    assert engine_for(configured(model, device="cuda"), model) == "torch"
    assert engine_for(configured(model, engine="torch"), model) == "torch"
    monkeypatch.setattr(engine, "_cuda", lambda: True)
    assert engine_for(configured(model), model) == "torch"
    assert engine_for(configured(model, device="cpu"), model) == "llamacpp"
    monkeypatch.setattr(engine, "_installed", lambda _: False)
    assert engine_for(configured(model, device="cpu"), model) == "torch"


def test_the_numbers_are_those_that_this_processor_multiplies_fast(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_cuda", lambda: False)
    for fast, chosen, bytes_each in ((True, "bfloat16", 2), (False, "float32", 4)):
        monkeypatch.setattr(linear, "can_pack", lambda device, dtype, fast=fast: fast)
        assert dtype_for(TorchSection()) == chosen
        folder = make_tiny_target(model.parent / chosen, seed=1)
        weights = TORCH.need(folder, configured(folder)).weights
        assert weights == TORCH.need(folder, configured(folder, dtype=chosen)).weights
        assert weights == TORCH.need(folder, configured(folder, dtype="bfloat16")).weights * bytes_each // 2
    assert dtype_for(TorchSection(dtype="bfloat16")) == "bfloat16"
    monkeypatch.setattr(engine, "_cuda", lambda: True)
    assert dtype_for(TorchSection()) == "bfloat16"


def test_a_gpu_that_is_not_there_is_refused(model: Path) -> None:
    with pytest.raises(ModelError, match='`target.device` is "cuda:7" and there is (no|only . )'):
        check_models(configured(model, engine="torch", device="cuda:7"))
    with pytest.raises(ConfigError, match="set `target.n_gpu_layers`"):
        configured(model, engine="llamacpp", device="cuda")


def test_a_model_larger_than_the_memory_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = TORCH.need(model, configured(model))
    for options, tokens, key in (({}, 256 + 17, "context"), ({"kv_tokens": 500}, 500, "kv_tokens")):
        settings = configured(model, engine="torch", context=256, **options)
        monkeypatch.setattr(targets, "available_memory", lambda n=tokens: need.weights + n * need.token)
        assert check_models(settings).engine == "torch"
        monkeypatch.setattr(targets, "available_memory", lambda n=tokens: need.weights + n * need.token - 1)
        with pytest.raises(ModelError, match=rf"for {tokens} tokens of KV cache.*or lower `target.{key}`\.$"):
            check_models(settings)


def test_what_a_model_needs_is_read_from_its_headers(model: Path, tmp_path: Path) -> None:
    weights = 2 * 64 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32) + 5 * 32
    numbers = 2 * 2 * 2 * 8  # keys and values, layers, heads, dimensions
    assert TORCH.need(model, configured(model, dtype="float32")) == Need(4 * weights, 8 * numbers)
    folder = make_tiny_target(tmp_path / "folder")
    inexact = configured(folder, dtype="bfloat16", exact="no")
    assert TORCH.need(folder, inexact) == Need(2 * weights, 2 * numbers)


@pytest.mark.parametrize("missing", ["torch", "llama_cpp"])
def test_a_missing_package_is_found_before_a_model_is_read(
    missing: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(ModuleNotFoundError) as caught:
        check_models(configured(model, model, engine="torch"))
    assert caught.value.name == missing


def test_a_folder_and_a_gguf_draft_of_one_tokenizer_pair(model: Path, tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path / "folder")
    check_models(configured(folder, model))
    with pytest.raises(TokenizerMismatch, match=r"its tokenizer has 80 tokens instead of 64"):
        check_models(configured(folder, make_tiny_gguf(tmp_path / "other.gguf", vocab=80)))


async def test_an_end_that_is_certain_waits_for_the_length_asked_for(model: Path) -> None:
    settings = configured(model, engine="torch", dtype="float32", context=256, threads=1)
    models = load_models(settings)
    ends = Sampling(temperature=1.0, seed=5, logit_bias=dict.fromkeys(models.target.eos, 100.0))
    for policy in ("plain", "wanspec"):
        chosen = Engine(models.target, models.local, engine_settings(overridden(settings, {"policy.name": policy})))
        with started(chosen):
            for length in (0, 9):
                tokens, done = await complete(chosen, GenerationRequest(PROMPT, 24, ends, min_tokens=length))
                assert (len(tokens), done.finish) == (length, "stop")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FAMILY and FAMILY.gguf of each."""
    root = tmp_path_factory.mktemp("families")
    for family in ARCHITECTURES:
        model = make(family, plain=True)
        write_gguf(root / f"{family}.gguf", model)
        model.save_pretrained(root / family)
        save_tokenizer(family, root / family)
    return root


def save_tokenizer(family: str, folder: Path) -> None:
    """The tokenizer that `write_gguf` writes, in the files of a folder."""
    if family not in SENTENCEPIECE:
        tiny_tokenizer(VOCAB).save(folder)
        return
    begin = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
    vocabulary = {text: number for number, text in enumerate(pieces(VOCAB))}
    content = {"model": {"type": "BPE", "vocab": vocabulary, "merges": ["t h"]}, "post_processor": begin}
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "add_bos_token": True}))


def test_folders_and_drafts_pair_where_their_tokenizer_is_one(made: Path) -> None:
    for target, draft in product(ARCHITECTURES, repeat=2):
        settings = configured(made / target, made / f"{draft}.gguf", engine="torch")
        if (target in SENTENCEPIECE) == (draft in SENTENCEPIECE):
            assert check_models(settings).engine == "torch", (target, draft)
        else:
            with pytest.raises(TokenizerMismatch, match=f"{draft}.gguf cannot draft for {target}"):
                check_models(settings)


def test_gguf_targets_and_drafts_pair_if_torch_reads_the_file(made: Path) -> None:
    for target, draft in product(ARCHITECTURES, repeat=2):
        if (target in SENTENCEPIECE) != (draft in SENTENCEPIECE):
            continue
        settings = configured(made / f"{target}.gguf", made / f"{draft}.gguf", engine="torch")
        if not FAMILIES[target].torch_reads_gguf:
            with pytest.raises(ModelError, match='set `target.engine` to "llamacpp"'):
                check_models(settings)
        else:
            assert check_models(settings).engine == "torch", (target, draft)
