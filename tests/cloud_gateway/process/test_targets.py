"""Which engine runs a target, models that are refused before a port opens or a weight is read, and every family paired
with every other.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from itertools import product
from pathlib import Path

import pytest

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models import headers
from cloud_gateway.models.drafts.gguf import LocalDraft
from cloud_gateway.models.headers import Need, llamacpp_need
from cloud_gateway.part import GatewayPart
from cloud_gateway.process import loading, targets
from cloud_gateway.process.config import GatewaySettings, schema
from cloud_gateway.process.loading import LoadedModels, engine_settings, load_models
from cloud_gateway.process.targets import LlamaCppEngine, check_models, draft_class, engine_for, kv_tokens
from edgespec.core.errors import ConfigError, ModelError, TokenizerMismatch
from edgespec.core.protocol.digests import canonical
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.part import Settings
from edgespec.shared.settings import overridden
from edgespec.shared.vocabfiles import Vocabulary
from tests.support.engines import complete, started
from tests.support.families import ARCHITECTURES, SENTENCEPIECE, make, write_gguf
from tests.support.tiny_gguf import make_tiny_gguf

LLAMA = LlamaCppEngine()
PROMPT = tuple(1 + i % 50 for i in range(20))


def configured(model: Path, draft: Path | str = "", **more: str) -> GatewaySettings:
    settings = overridden(GatewaySettings(), {"target.model": str(model)})
    settings = overridden(settings, {"local_draft.model": str(draft)})
    for key, value in more.items():
        settings = overridden(settings, {key if "." in key else f"target.{key}": value})
    return settings


# --- the choice ------------------------------------------------------------------------------------------------------


class Folders(LlamaCppEngine):
    """An engine of a part, for folders only."""

    def suits(self, model: Path, settings: Settings) -> bool:
        return model.is_dir()


def test_the_first_engine_that_suits_is_taken(model: Path) -> None:
    part = GatewayPart("another", engines={"folders": Folders()})
    for settings in (configured(model), overridden(schema([part])(), {"target.model": str(model)})):
        assert engine_for(settings, model) == "llamacpp"
    assert engine_for(settings, model.parent) == "folders"
    chosen = overridden(settings, {"target.engine": "folders"})
    assert engine_for(chosen, model) == "folders"


class Tables(LlamaCppEngine):
    """An engine of a part, whose targets are files of a kind of its own."""

    def suits(self, model: Path, settings: Settings) -> bool:
        return model.suffix == ".table"

    def check(self, model: Path, settings: Settings) -> None:
        """Any is good."""

    def vocabulary(self, model: Path) -> Vocabulary:
        return Vocabulary(canonical(model.read_bytes().split()), None)

    def need(self, model: Path, settings: Settings) -> Need:
        return Need(0, 0)


def test_an_engine_names_the_tokenizer_of_a_file_that_only_it_reads(model: Path, tmp_path: Path) -> None:
    table = tmp_path / "words.table"
    table.write_bytes(b"the red fox")
    part = GatewayPart("another", engines={"tables": Tables()})
    settings = overridden(schema([part])(), {"target.model": str(table), "local_draft.model": ""})
    assert check_models(settings).engine == "tables"
    with pytest.raises(
        TokenizerMismatch, match=r"cannot draft for words\.table: its tokenizer has 64 tokens instead of 3"
    ):
        check_models(overridden(settings, {"local_draft.model": str(model)}))


def test_a_folder_without_an_engine_for_it_is_refused(model: Path) -> None:
    with pytest.raises(ModelError, match="no engine here computes models of transformers: name a GGUF file"):
        check_models(configured(model.parent))


def test_an_engine_that_no_part_brings_is_refused() -> None:
    part = GatewayPart("another", engines={"folders": Folders()})
    with pytest.raises(ConfigError, match=r'"auto" or "llamacpp" or "folders" or "vllm" or'):
        overridden(schema([part])(), {"target.engine": "nonesuch"})
    for engine in ("vllm", "vllm:/opt/vllm", "vllm+http://127.0.0.1:8000"):
        assert overridden(GatewaySettings(), {"target.engine": engine}).target.engine == engine


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "llamacpp", "n_gpu_layers": "9"}, "`n_gpu_layers` = 9 asks for a GPU"),
        ({"engine": "llamacpp", "local_draft.n_gpu_layers": "9"}, "`n_gpu_layers` = 9 asks for a GPU"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(model: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        check_models(configured(model, model, **options))


def test_a_draft_takes_memory_only_where_its_weights_are(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured(model, model, engine="llamacpp", context="256")
    need = llamacpp_need(model)
    cells = 256 + 1 + settings.policy.verify_nodes
    monkeypatch.setattr(targets, "available_memory", lambda: need.weights + cells * need.token)
    with pytest.raises(ModelError, match="GB for weights"):
        kv_tokens(settings, LLAMA, model, model)
    on_gpu = overridden(settings, {"local_draft.n_gpu_layers": "9"})
    assert kv_tokens(on_gpu, LLAMA, model, model) == cells


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


def test_a_draft_of_another_vocabulary_is_refused_unless_a_part_pairs_it(model: Path, tmp_path: Path) -> None:
    other = make_tiny_gguf(tmp_path / "other.gguf", vocab=80)
    with pytest.raises(TokenizerMismatch, match=r"cannot draft for tiny\.gguf: its tokenizer has 80 tokens .*; set"):
        check_models(configured(model, other))
    assert draft_class((), LlamaCppEngine(), model, model) is LocalDraft


def test_a_recurrent_family_is_refused_as_target_and_as_draft(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mamba = tmp_path / "mamba.gguf"
    read = headers.gguf_metadata
    shutil.copy(model, mamba)
    found = {"general.architecture": "mamba", "mamba.ssm.state_size": 16}
    monkeypatch.setattr(headers, "gguf_metadata", lambda path: found if path == mamba else read(path))
    for settings in (configured(mamba), configured(model, mamba)):
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
    need = llamacpp_need(model)
    cells = 256 + 1 + settings.policy.verify_nodes
    both = 2 * need.weights + (cells + targets.MIN_DRAFT_CELLS) * need.token
    monkeypatch.setattr(targets, "available_memory", lambda: both)
    assert kv_tokens(settings, LLAMA, model, model) == cells
    monkeypatch.setattr(targets, "available_memory", lambda: both - 1)
    with pytest.raises(ModelError, match="GB for weights and draft"):
        kv_tokens(settings, LLAMA, model, model)


def test_a_model_larger_than_the_memory_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = llamacpp_need(model)
    for options, tokens, key in (({}, 256 + 17, "context"), ({"kv_tokens": "500"}, 500, "kv_tokens")):
        settings = configured(model, context="256", **options)
        monkeypatch.setattr(targets, "available_memory", lambda n=tokens: need.weights + n * need.token)
        assert check_models(settings).engine == "llamacpp"
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
    need = llamacpp_need(model)
    monkeypatch.setattr(targets, "available_memory", lambda: need.weights + spare * need.token)
    assert kv_tokens(configured(model, context="256", **options), LLAMA, model, None) == tokens


def test_what_a_model_needs_is_read_from_its_headers(model: Path) -> None:
    numbers = 2 * 2 * 2 * 8  # keys and values, layers, heads, dimensions
    assert LLAMA.need(model, configured(model)) == Need(model.stat().st_size, 2 * numbers)


@pytest.mark.parametrize("missing", ["transformers", "llama_cpp"])
def test_a_missing_package_is_found_before_a_model_is_read(
    missing: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(ModuleNotFoundError) as caught:
        check_models(configured(model, model))
    assert caught.value.name == missing


def test_models_that_were_checked_are_not_checked_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured(model, engine="llamacpp", context="256", threads="1")
    plan = check_models(settings)
    monkeypatch.delattr(loading, "check_models")
    monkeypatch.delattr(targets, "kv_tokens")
    assert load_models(settings, plan).target.kv_tokens == plan.kv_tokens


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModels, GatewaySettings]:
    draft = make_tiny_gguf(tmp_path_factory.mktemp("draft") / "draft.gguf", unlike=0.05)
    settings = configured(model, draft, engine="llamacpp", exact="yes", context="256", threads="1")
    settings = overridden(settings, {"local_draft.threads": "1"})
    return load_models(settings), settings


async def answers(loaded: tuple[LoadedModels, GatewaySettings], policy: str, sampling: Sampling) -> list[list[int]]:
    """Completions of three requests at the same time."""
    models, settings = loaded
    engine = Engine(models.target, models.local, engine_settings(overridden(settings, {"policy.name": policy})))
    requests = [GenerationRequest((*PROMPT, number), 24, sampling, ignore_eos=True) for number in range(3)]
    with started(engine):
        found = await asyncio.gather(*(complete(engine, request) for request in requests))
    return [tokens for tokens, _ in found]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_drafts_change_no_token_of_requests_that_share_passes(
    loaded: tuple[LoadedModels, GatewaySettings], temperature: float
) -> None:
    assert loaded[0].target.exact
    sampling = Sampling(temperature=temperature, seed=5)
    plain = await answers(loaded, "plain", sampling)
    assert [len(tokens) for tokens in plain] == [24] * 3
    for policy in ("wanspec", "adaptive"):
        assert await answers(loaded, policy, sampling) == plain


async def test_an_end_that_is_certain_waits_for_the_length_asked_for(model: Path) -> None:
    settings = configured(model, exact="yes", context="256", threads="1")
    models = load_models(settings)
    ends = Sampling(temperature=1.0, seed=5, logit_bias=dict.fromkeys(models.target.eos, 100.0))
    for policy in ("plain", "wanspec"):
        chosen = Engine(models.target, models.local, engine_settings(overridden(settings, {"policy.name": policy})))
        with started(chosen):
            for length in (0, 9):
                tokens, done = await complete(chosen, GenerationRequest(PROMPT, 24, ends, min_tokens=length))
                assert (len(tokens), done.finish) == (length, "stop")


def test_the_tokenizer_comes_from_the_gguf_file(loaded: tuple[LoadedModels, GatewaySettings]) -> None:
    text = loaded[0].text
    tokens = text.render_chat([{"role": "user", "content": "a cat"}])
    assert text.decode(tokens) == "user\na cat\nassistant\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FAMILY.gguf of each."""
    root = tmp_path_factory.mktemp("families")
    for family in ARCHITECTURES:
        write_gguf(root / f"{family}.gguf", make(family, plain=True))
    return root


def test_gguf_targets_and_drafts_of_one_tokenizer_all_pair(made: Path) -> None:
    for target, draft in product(ARCHITECTURES, repeat=2):
        settings = configured(made / f"{target}.gguf", made / f"{draft}.gguf")
        if (target in SENTENCEPIECE) == (draft in SENTENCEPIECE):
            assert check_models(settings).engine == "llamacpp", (target, draft)
        else:
            with pytest.raises(TokenizerMismatch, match=rf"{draft}\.gguf cannot draft for {target}\.gguf"):
                check_models(settings)
