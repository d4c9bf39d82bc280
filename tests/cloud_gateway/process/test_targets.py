"""Which engine runs a target, and models that are refused before a port opens or a weight is read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloud_gateway.core.requests.request import GenerationRequest, TokensEvent
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.output_queue import Stream
from cloud_gateway.models.target_model import llamacpp
from cloud_gateway.process import targets
from cloud_gateway.process.config import GatewaySettings, TargetSection
from cloud_gateway.process.loading import Models, engine_settings, load_models
from cloud_gateway.process.targets import check_models, engine_for
from edgespec.core.errors import EdgespecError, ModelError, TokenizerMismatch
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.settings import override
from tests.support.tiny_gguf import make_tiny_gguf

PROMPT = tuple(1 + i % 50 for i in range(20))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def configured(model: Path, draft: Path | str = "", **more: str) -> GatewaySettings:
    settings = override(GatewaySettings(), "target.model", str(model))
    settings = override(settings, "local_draft.model", str(draft))
    for key, value in more.items():
        settings = override(settings, f"target.{key}", value)
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


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "llamacpp", "device": "cuda"}, "set `target.n_gpu_layers`"),
        ({"engine": "llamacpp", "n_gpu_layers": "9"}, "`n_gpu_layers` = 9 asks for a GPU"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(model: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        check_models(configured(model, **options))


def test_a_missing_llama_cpp_names_the_command(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_installed", lambda _: False)
    with pytest.raises(ModelError, match=r"run `pip install 'edgespec\[worker\]'`"):
        check_models(configured(model, engine="llamacpp"))


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


def test_a_draft_of_another_vocabulary_is_refused(model: Path, tmp_path: Path) -> None:
    other = make_tiny_gguf(tmp_path / "other.gguf", vocab=80)
    with pytest.raises(TokenizerMismatch, match=r"The local draft other\.gguf"):
        check_models(configured(model, other))
    check_models(configured(model, model))


def test_a_recurrent_family_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"general.architecture": "mamba", "mamba.ssm.state_size": 16}
    monkeypatch.setattr(llamacpp, "gguf_metadata", lambda _: metadata)
    with pytest.raises(ModelError, match="family mamba, which cannot verify trees"):
        check_models(configured(model, engine="llamacpp"))


def test_a_model_larger_than_the_memory_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "available_bytes", lambda: 1000.0)
    with pytest.raises(ModelError, match=r"GB of memory and 0\.0 GB are available"):
        check_models(configured(model, engine="llamacpp"))


def test_every_refusal_is_one_sentence(model: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"x")
    for settings in (configured(tmp_path / "broken.gguf"), configured(model.parent, engine="llamacpp")):
        with pytest.raises(EdgespecError) as caught:
            check_models(settings)
        assert "\n" not in str(caught.value)


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Models, GatewaySettings]:
    draft = make_tiny_gguf(tmp_path_factory.mktemp("draft") / "draft.gguf", unlike=0.05)
    settings = configured(model, draft, engine="llamacpp", exact="yes", context="256", threads="1")
    settings = override(settings, "local_draft.threads", "1")
    return load_models(settings), settings


async def answers(loaded: tuple[Models, GatewaySettings], policy: str, sampling: Sampling) -> list[list[int]]:
    """Completions of three requests at the same time."""
    models, settings = loaded
    engine = Engine(models.target, models.local, engine_settings(override(settings, "policy.name", policy)))
    engine.start()
    requests = [GenerationRequest((*PROMPT, number), 24, sampling, ignore_eos=True) for number in range(3)]
    try:
        return await asyncio.gather(*(tokens_of(engine.submit(request)) for request in requests))
    finally:
        engine.stop()


async def tokens_of(stream: Stream) -> list[int]:
    return [token async for event in stream if isinstance(event, TokensEvent) for token in event.tokens]


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


def test_the_tokenizer_comes_from_the_gguf_file(loaded: tuple[Models, GatewaySettings]) -> None:
    text = loaded[0].text
    tokens = text.render_chat([{"role": "user", "content": "a cat"}])
    assert text.decode(tokens) == "user\na cat\nassistant\n"
