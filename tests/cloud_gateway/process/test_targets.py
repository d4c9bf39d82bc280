"""Which engine runs a target, models that are refused before a port opens or a weight is read, and every family paired
with every other.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models import headers
from cloud_gateway.models.headers import FAMILIES, Need
from cloud_gateway.models.target_model import linear
from cloud_gateway.process import loading, targets
from cloud_gateway.process.config import GatewaySettings, TargetSection
from cloud_gateway.process.loading import Models, engine_settings, load_models
from cloud_gateway.process.targets import check_models, engine_for, kv_tokens, need_of, translation_of
from edgespec.core.errors import ConfigError, ModelError, TokenizerMismatch
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.settings import overridden
from tests.support.engines import complete, started
from tests.support.families import ARCHITECTURES, SENTENCEPIECE, VOCAB, make, pieces, write_gguf
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target
from tests.support.tiny_tokenizer import tiny_tokenizer

PROMPT = tuple(1 + i % 50 for i in range(20))


def configured(model: Path, draft: Path | str = "", **more: str) -> GatewaySettings:
    settings = overridden(GatewaySettings(), {"target.model": str(model)})
    settings = overridden(settings, {"local_draft.model": str(draft)})
    for key, value in more.items():
        settings = overridden(settings, {key if "." in key else f"target.{key}": value})
    return settings


# --- the choice ------------------------------------------------------------------------------------------------------


def test_a_gguf_file_without_a_gpu_runs_on_llama_cpp(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_cuda", lambda: False)
    assert engine_for(TargetSection(), model) == "llamacpp"
    assert engine_for(TargetSection(), model.parent) == "torch", "a folder"
    assert engine_for(TargetSection(dtype="float32"), model) == "torch"
    assert engine_for(TargetSection(device="cuda"), model) == "torch"
    assert engine_for(TargetSection(engine="torch"), model) == "torch"
    monkeypatch.setattr(targets, "_cuda", lambda: True)
    assert engine_for(TargetSection(), model) == "torch"
    assert engine_for(TargetSection(device="cpu"), model) == "llamacpp"
    monkeypatch.setattr(targets, "_installed", lambda _: False)
    assert engine_for(TargetSection(device="cpu"), model) == "torch"


def test_the_numbers_are_those_that_this_processor_multiplies_fast(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_cuda", lambda: False)
    for fast, chosen, bytes_each in ((True, "bfloat16", 2), (False, "float32", 4)):
        monkeypatch.setattr(linear, "can_pack", lambda device, dtype, fast=fast: fast)
        assert targets.dtype_for(TargetSection()) == chosen
        folder = make_tiny_target(model.parent / chosen, seed=1)
        weights = need_of(TargetSection(), "torch", folder).weights
        assert weights == need_of(TargetSection(dtype=chosen), "torch", folder).weights
        assert weights == need_of(TargetSection(dtype="bfloat16"), "torch", folder).weights * bytes_each // 2
    assert targets.dtype_for(TargetSection(dtype="bfloat16")) == "bfloat16"
    monkeypatch.setattr(targets, "_cuda", lambda: True)
    assert targets.dtype_for(TargetSection()) == "bfloat16"


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "llamacpp", "device": "cuda"}, "set `target.n_gpu_layers`"),
        ({"engine": "llamacpp", "n_gpu_layers": "9"}, "`n_gpu_layers` = 9 asks for a GPU"),
        ({"engine": "torch", "device": "cuda:7"}, '`target.device` is "cuda:7" and there is (no|only . )'),
        ({"engine": "llamacpp", "local_draft.n_gpu_layers": "9"}, "`n_gpu_layers` = 9 asks for a GPU"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(model: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        check_models(configured(model, model, **options))


def test_a_draft_takes_memory_only_where_its_weights_are(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured(model, model, engine="llamacpp", context="256")
    need = need_of(settings.target, "llamacpp", model)
    cells = 256 + 1 + settings.policy.verify_nodes
    monkeypatch.setattr(targets, "available_memory", lambda: need.weights + cells * need.token)
    with pytest.raises(ModelError, match="GB for weights"):
        kv_tokens(settings, "llamacpp", model, model)
    on_gpu = overridden(settings, {"local_draft.n_gpu_layers": "9"})
    assert kv_tokens(on_gpu, "llamacpp", model, model) == cells


def test_a_folder_is_refused_by_llama_cpp(model: Path) -> None:
    with pytest.raises(ModelError, match="reads GGUF files and .* is a folder"):
        check_models(configured(model.parent, engine="llamacpp"))


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF\x03\x00\x00\x00"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="broken.gguf"):
        check_models(configured(tmp_path / "broken.gguf", engine="llamacpp"))


def test_a_file_that_lacks_its_last_weights_is_refused(model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) - 5000])
    with pytest.raises(ModelError, match=r"cut\.gguf.*(corrupt|incomplete|bounds)"):
        load_models(configured(tmp_path / "cut.gguf", engine="llamacpp"))


def test_a_draft_of_another_vocabulary_is_translated(model: Path, tmp_path: Path) -> None:
    other = make_tiny_gguf(tmp_path / "other.gguf", vocab=80)
    check_models(configured(model, other))
    assert translation_of(model, other) is not None and translation_of(model, model) is None


def test_a_recurrent_family_is_refused_as_target_and_as_draft(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mamba = tmp_path / "mamba.gguf"
    read = headers.gguf_metadata
    shutil.copy(model, mamba)
    found = {"general.architecture": "mamba", "mamba.ssm.state_size": 16}
    monkeypatch.setattr(headers, "gguf_metadata", lambda path: found if path == mamba else read(path))
    for settings in (configured(mamba, engine="llamacpp"), configured(model, mamba, engine="torch")):
        with pytest.raises(ModelError, match="family mamba, which cannot verify trees"):
            check_models(settings)


@pytest.mark.parametrize(("slots", "draft", "sentence"), [("241", False, "256 sequences"), ("65", True, "64 requests")])
def test_more_slots_than_llama_cpp_serves_are_refused(slots: str, draft: bool, sentence: str, model: Path) -> None:
    options = {"engine": "llamacpp", "context": "256", "kv_tokens": "2000"}
    named = model if draft else ""
    with pytest.raises(ConfigError, match=rf"{sentence}.*`target.slots`"):
        check_models(configured(model, named, slots=slots, **options))
    assert check_models(configured(model, named, slots=str(int(slots) - 1), **options)).kv_tokens == 2000


def test_a_draft_needs_memory_for_its_weights_and_its_context(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured(model, model, engine="llamacpp", context="256")
    need = need_of(settings.target, "llamacpp", model)
    cells = 256 + 1 + settings.policy.verify_nodes
    both = 2 * need.weights + (cells + targets.MIN_DRAFT_CELLS) * need.token
    monkeypatch.setattr(targets, "available_memory", lambda: both)
    assert kv_tokens(settings, "llamacpp", model, model) == cells
    monkeypatch.setattr(targets, "available_memory", lambda: both - 1)
    with pytest.raises(ModelError, match="GB for weights and draft"):
        kv_tokens(settings, "llamacpp", model, model)


@pytest.mark.parametrize("engine", ["torch", "llamacpp"])
def test_a_model_larger_than_the_memory_is_refused(engine: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = need_of(TargetSection(), "torch" if engine == "torch" else "llamacpp", model)
    for options, tokens, key in (({}, 256 + 17, "context"), ({"kv_tokens": "500"}, 500, "kv_tokens")):
        settings = configured(model, engine=engine, context="256", **options)
        monkeypatch.setattr(targets, "available_memory", lambda n=tokens: need.weights + n * need.token)
        assert check_models(settings).engine == engine
        monkeypatch.setattr(targets, "available_memory", lambda n=tokens: need.weights + n * need.token - 1)
        with pytest.raises(ModelError, match=rf"for {tokens} tokens of KV cache.*or lower `target.{key}`\.$"):
            check_models(settings)


@pytest.mark.parametrize(
    ("options", "spare", "tokens"),
    [
        ({}, 10_000, 4 * (256 + 17)),
        ({}, 1000, 900),
        ({}, 280, 256 + 17),
        ({"slots": "2"}, 10_000, 2 * (256 + 17)),
        ({"kv_tokens": "400"}, 10_000, 400),
    ],
)
def test_the_kv_cache_takes_what_slots_can_use_and_memory_has(
    options: dict[str, str], spare: int, tokens: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = need_of(TargetSection(), "llamacpp", model)
    monkeypatch.setattr(targets, "available_memory", lambda: need.weights + spare * need.token)
    assert kv_tokens(configured(model, context="256", **options), "llamacpp", model, None) == tokens


def test_what_a_model_needs_is_read_from_its_headers(model: Path, tmp_path: Path) -> None:
    weights = 2 * 64 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32) + 5 * 32
    numbers = 2 * 2 * 2 * 8  # keys and values, layers, heads, dimensions
    assert need_of(TargetSection(dtype="float32"), "torch", model) == Need(4 * weights, 8 * numbers)
    assert need_of(TargetSection(), "llamacpp", model) == Need(model.stat().st_size, 2 * numbers)
    folder = make_tiny_target(tmp_path / "folder")
    assert need_of(TargetSection(dtype="bfloat16", exact="no"), "torch", folder) == Need(2 * weights, 2 * numbers)


def test_heads_are_counted_as_weights_and_an_eagle_head_with_every_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_target(tmp_path / "folder")
    eagle = tmp_path / "eagle"
    medusa = tmp_path / "medusa"
    save_file({"qkv": torch.zeros(3, 2, 16, 32), "norm_1": torch.zeros(32)}, eagle)
    save_file({"down": torch.zeros(3, 32, 8)}, medusa)
    plain = need_of(TargetSection(), "torch", folder)
    assert need_of(TargetSection(), "torch", folder, [str(medusa)]) == plain + Need(4 * 3 * 32 * 8, 0)
    need = need_of(TargetSection(), "torch", folder, [str(eagle)])
    assert need == plain + Need(4 * (3 * 2 * 16 * 32 + 32), 4 * (2 * 2 * 16 + 32))
    settings = overridden(configured(folder, context="256", device="cpu"), {"sources.heads": [str(eagle)]})
    monkeypatch.setattr(targets, "available_memory", lambda: need.weights + 1000 * need.token)
    assert check_models(settings).kv_tokens == 900
    eagle.write_bytes(b"cut")
    with pytest.raises(ModelError, match="eagle is corrupt"):
        check_models(settings)


@pytest.mark.parametrize(
    ("missing", "engine"), [("torch", "torch"), ("transformers", "llamacpp"), ("llama_cpp", "torch")]
)
def test_a_missing_package_is_found_before_a_model_is_read(
    missing: str, engine: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(ModuleNotFoundError) as caught:
        check_models(configured(model, model, engine=engine))
    assert caught.value.name == missing


def test_a_folder_and_a_gguf_draft_of_one_tokenizer_pair(model: Path, tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path / "folder")
    check_models(configured(folder, model))
    with pytest.raises(TokenizerMismatch, match=r"its tokenizer has 80 tokens instead of 64"):
        check_models(configured(folder, make_tiny_gguf(tmp_path / "other.gguf", vocab=80)))


def test_models_that_were_checked_are_not_checked_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured(model, engine="llamacpp", context="256", threads="1")
    plan = check_models(settings)
    monkeypatch.delattr(loading, "check_models")
    monkeypatch.delattr(targets, "kv_tokens")
    assert load_models(settings, plan).target.kv_tokens == plan.kv_tokens


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Models, GatewaySettings]:
    draft = make_tiny_gguf(tmp_path_factory.mktemp("draft") / "draft.gguf", unlike=0.05)
    settings = configured(model, draft, engine="llamacpp", exact="yes", context="256", threads="1")
    settings = overridden(settings, {"local_draft.threads": "1"})
    return load_models(settings), settings


async def answers(loaded: tuple[Models, GatewaySettings], policy: str, sampling: Sampling) -> list[list[int]]:
    """Completions of three requests at the same time."""
    models, settings = loaded
    engine = Engine(models.target, models.local, engine_settings(overridden(settings, {"policy.name": policy})))
    requests = [GenerationRequest((*PROMPT, number), 24, sampling, ignore_eos=True) for number in range(3)]
    with started(engine):
        found = await asyncio.gather(*(complete(engine, request) for request in requests))
    return [tokens for tokens, _ in found]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_drafts_change_no_token_of_requests_that_share_passes(
    loaded: tuple[Models, GatewaySettings], temperature: float
) -> None:
    assert loaded[0].target.exact
    sampling = Sampling(temperature=temperature, seed=5)
    plain = await answers(loaded, "plain", sampling)
    assert [len(tokens) for tokens in plain] == [24] * 3
    for policy in ("colocated", "colocated-tree", "adaptive"):
        assert await answers(loaded, policy, sampling) == plain


@pytest.mark.parametrize("engine", ["llamacpp", "torch"])
async def test_an_end_that_is_certain_waits_for_the_length_asked_for(model: Path, engine: str) -> None:
    settings = configured(model, engine=engine, dtype="float32", context="256", threads="1")
    models = load_models(settings)
    ends = Sampling(temperature=1.0, seed=5, logit_bias=dict.fromkeys(models.target.eos, 100.0))
    for policy in ("plain", "colocated"):
        chosen = Engine(models.target, models.local, engine_settings(overridden(settings, {"policy.name": policy})))
        with started(chosen):
            for length in (0, 9):
                tokens, done = await complete(chosen, GenerationRequest(PROMPT, 24, ends, min_tokens=length))
                assert (len(tokens), done.finish) == (length, "stop")


def test_the_tokenizer_comes_from_the_gguf_file(loaded: tuple[Models, GatewaySettings]) -> None:
    text = loaded[0].text
    tokens = text.render_chat([{"role": "user", "content": "a cat"}])
    assert text.decode(tokens) == "user\na cat\nassistant\n"


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


@pytest.mark.parametrize("engine", ["torch", "llamacpp"])
def test_gguf_targets_and_drafts_all_pair(engine: str, made: Path) -> None:
    for target, draft in product(ARCHITECTURES, repeat=2):
        settings = configured(made / f"{target}.gguf", made / f"{draft}.gguf", engine=engine)
        if engine == "torch" and not FAMILIES[target].torch_reads_gguf:
            with pytest.raises(ModelError, match='set `target.engine` to "llamacpp"'):
                check_models(settings)
        else:
            assert check_models(settings).engine == engine, (target, draft)
