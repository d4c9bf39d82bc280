"""Chooses the engine of the target, checks the models that the configuration names, and loads the target.

The engine of llama.cpp is here; a part may bring others, which fill the same seam (`TargetEngine`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.models.headers import Need, check_llamacpp, llamacpp_need, spare_sequences
from cloud_gateway.part import DraftMaker, GatewayPart, Place, StateSources, TargetEngine
from cloud_gateway.process.config import LLAMACPP, GatewaySettings, TargetSection
from edgespec.core.drafting.settings import MAX_REQUESTS
from edgespec.core.errors import ConfigError, ModelError, TokenizerMismatch
from edgespec.shared.installed import require
from edgespec.shared.models import resolve_model
from edgespec.shared.part import Settings, require_trials, thread_rule
from edgespec.shared.procstat import available_memory
from edgespec.shared.vocabfiles import Vocabulary, gguf_vocabulary

if TYPE_CHECKING:
    from cloud_gateway.models.drafts import MakeLocalDraft
    from cloud_gateway.models.target_model.load import LoadedModel

log = logging.getLogger("cloud_gateway.process.loading")
MIN_DRAFT_CELLS = 8192
"""KV cells of the local draft; more if one request may be longer."""
KV_SHARE = 0.9
"""Of the memory beside the weights, for the KV cache if `target.kv_tokens` is 0: passes need some too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a target that was checked is loaded."""

    path: Path
    engine: str
    kv_tokens: int
    """Tokens that the KV cache of all slots together holds."""


class LlamaCppEngine:
    """The `TargetEngine` of the core."""

    packages: Sequence[str] = ("transformers", "llama_cpp")

    def suits(self, model: Path, settings: Settings) -> bool:
        return model.is_file()

    def check(self, model: Path, settings: Settings) -> None:
        options = settings.of(TargetSection)
        if model.is_dir():
            raise ModelError(
                f"The engine llamacpp reads GGUF files and {model} is a folder: name a GGUF file as `target.model`, or "
                "another `target.engine`."
            )

        check_llamacpp(model, options.n_gpu_layers)
        exact = options.exact == "yes" and not options.n_gpu_layers
        spare_sequences(options.slots, settings.of(PolicySettings).verify_nodes, exact=exact)

    def vocabulary(self, model: Path) -> Vocabulary:
        return gguf_vocabulary(model)

    def need(self, model: Path, settings: Settings) -> Need:
        return llamacpp_need(model)

    def place(self, settings: Settings) -> Place:
        return Place(on_gpu=settings.of(TargetSection).n_gpu_layers > 0)

    def load(self, model: Path, settings: Settings, kv_tokens: int) -> LoadedModel:
        from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
        from cloud_gateway.models.target_model.load import LoadedModel, load_vocabulary

        options = settings.of(TargetSection)
        require_trials(settings.parts, model, options.n_gpu_layers)
        vocabulary, ends = load_vocabulary(model)
        target = LlamaCppTarget(
            model,
            eos=frozenset(ends),
            slots=options.slots,
            context=options.context,
            kv_tokens=kv_tokens,
            tree_nodes=settings.of(PolicySettings).verify_nodes,
            threads=options.threads,
            thread_rule=thread_rule(settings.parts),
            gpu_layers=options.n_gpu_layers,
            exact=options.exact == "yes",
        )

        log.info("target %s loaded by llama.cpp%s", model.name, ", exact" if target.exact else "")
        if options.exact == "yes" and not target.exact:
            log.warning("`target.exact` cannot be had with this model on this machine: a tree's logits differ in bits.")
        made_by = f"llamacpp {options.n_gpu_layers} {target.exact} {version('llama-cpp-python')}"
        return LoadedModel(target, vocabulary, made_by)


def engines_of(parts: Sequence[GatewayPart]) -> Mapping[str, TargetEngine]:
    """All engines by name, those of the parts first: `auto` takes the first one that suits."""
    engines: dict[str, TargetEngine] = {}
    for part in parts:
        engines.update(part.engines)
    engines[LLAMACPP] = LlamaCppEngine()
    return engines


def engine_for(settings: GatewaySettings, model: Path) -> str:
    """`target.engine`, or what "auto" stands for. Raises ModelError if no engine takes the model."""
    name = settings.target.engine
    if name != "auto":
        return name

    for name, engine in engines_of(settings.parts).items():
        if engine.suits(model, settings):
            return name
    raise ModelError(
        f"{model} is a folder, and no engine here computes models of transformers: name a GGUF file as "
        "`target.model`, or use an edgespec with an engine for folders."
    )


def check_models(settings: GatewaySettings) -> Plan:
    """How to load the target. Takes a fraction of a second: it reads no weights.

    Raises ModelError for a model that cannot be served, TokenizerMismatch if the local draft does not fit,
    ConfigError if there are too many slots.
    """
    path = resolve_model(settings.target.model)
    name = engine_for(settings, path)
    engine = engines_of(settings.parts)[name]
    require(*engine.packages)
    engine.check(path, settings)

    maker = draft_maker(settings)
    if maker is not None:
        maker.check(name)
    for beside in beside_target(settings):
        beside.check(name, settings)

    draft = None
    if settings.local_draft.model and maker is None:
        draft = resolve_model(settings.local_draft.model)
        _check_draft(settings, engine, path, draft)
    return Plan(path, name, kv_tokens(settings, engine, path, draft))


def draft_maker(settings: GatewaySettings) -> DraftMaker | None:
    """The maker of the local draft if `local_draft.model` names no file."""
    for part in settings.parts:
        if settings.local_draft.model in part.drafts:
            return part.drafts[settings.local_draft.model]
    return None


def beside_target(settings: GatewaySettings) -> Iterator[StateSources]:
    """What parts load beside the target, for sources that compute with its states."""
    for part in settings.parts:
        if part.state_sources is not None:
            yield part.state_sources


def _check_draft(settings: GatewaySettings, engine: TargetEngine, target: Path, draft: Path) -> None:
    """Raises ConfigError, ModelError or TokenizerMismatch if it cannot draft here for the target."""
    require("llama_cpp")
    if draft_requests(settings) > MAX_REQUESTS:
        raise ConfigError(
            f"`target.slots` is {settings.target.slots}, and a local draft takes {MAX_REQUESTS} requests at once: "
            'lower `target.slots`, or set `local_draft.model` to "".'
        )

    draft_class(settings.parts, engine, target, draft)
    check_llamacpp(draft, settings.local_draft.n_gpu_layers)


def kv_tokens(settings: GatewaySettings, engine: TargetEngine, path: Path, draft: Path | None) -> int:
    """Tokens that the KV cache holds: `target.kv_tokens`, or as many as all slots can use and memory has room for.

    Raises ModelError if weights and `target.kv_tokens`, or one slot, do not fit.
    """
    options = settings.target
    rows = 1 + settings.policy.verify_nodes
    full = options.kv_tokens or options.slots * (options.context + rows)

    place = engine.place(settings)
    if not place.on_gpu:
        available = available_memory()
        where = "memory"
    elif place.free is not None:
        available = place.free
        where = "the GPU"
    else:
        return full

    need = need_of(settings, engine, path)
    drafted = 0
    draft_on_gpu = settings.local_draft.n_gpu_layers > 0
    if draft is not None and draft_on_gpu == place.on_gpu:
        drafted = _draft_bytes(settings, draft)

    weights = need.weights + drafted
    least = options.kv_tokens or options.context + rows
    if weights + least * need.token > available:
        raise ModelError(
            f"{path.name} needs {weights / 1e9:.1f} GB for weights{' and draft' if drafted else ''} and "
            f"{least * need.token / 1e9:.1f} GB for {least} tokens of KV cache, and {available / 1e9:.1f} GB of "
            f"{where} are available: choose a smaller model or quantisation, or lower "
            f"`target.{'kv_tokens' if options.kv_tokens else 'context'}`."
        )

    fits = max(int(min(KV_SHARE * (available - weights) / max(need.token, 1), full)), least)
    if fits < full:
        log.warning("%s holds %d of the %d tokens of KV cache that all slots could use", where, fits, full)
    return fits


def need_of(settings: GatewaySettings, engine: TargetEngine, path: Path) -> Need:
    """Memory that the target takes with this engine, and what is loaded beside it. Raises ModelError."""
    need = engine.need(path, settings)
    for beside in beside_target(settings):
        need += beside.need(settings)
    return need


def draft_cells(settings: GatewaySettings) -> int:
    """KV cells of the local draft: requests in slots share those of one context, and others have as many each."""
    beside = draft_requests(settings) - settings.target.slots
    return max(settings.target.context, MIN_DRAFT_CELLS) * (1 + beside)


def draft_requests(settings: GatewaySettings) -> int:
    """Requests that the local draft serves at once: those in slots, and what parts draft beside them."""
    return settings.target.slots + sum(part.drafted_beside(settings) for part in settings.parts)


def _draft_bytes(settings: GatewaySettings, draft: Path) -> int:
    need = llamacpp_need(draft)
    return need.weights + draft_cells(settings) * need.token


def draft_class(parts: Sequence[GatewayPart], engine: TargetEngine, target: Path, draft: Path) -> MakeLocalDraft:
    """Loads a local draft for a target of this engine: `LocalDraft` if the tokenizers are equal, or a part's class.

    Raises ModelError for a folder, and TokenizerMismatch if the tokenizers differ and no part drafts nevertheless.
    """
    from cloud_gateway.models.drafts.gguf import LocalDraft

    difference = difference_of(engine.vocabulary(target), draft)
    if difference is None:
        return LocalDraft

    cause = f"its tokenizer {difference}"
    for part in parts:
        if part.other_tokenizers is not None:
            try:
                return part.other_tokenizers.draft_class(target, draft)
            except ModelError as error:
                cause = f"{cause}, {error}"
                break

    raise TokenizerMismatch(
        f"The local draft {draft.name} cannot draft for {target.name}: {cause}; set `local_draft.model` to a draft of "
        "the target's family, or to nothing."
    )


def difference_of(target: Vocabulary, draft: Path) -> str | None:
    """The difference between the tokenizers of target and local draft, as a predicate; None if they are the same.

    Raises ModelError if the draft is a folder.
    """
    if draft.is_dir():
        raise ModelError(f"Drafts run in llama.cpp, which reads GGUF files, and {draft} is a folder: name a GGUF file.")

    return target.difference(gguf_vocabulary(draft))


def load_target(settings: GatewaySettings, plan: Plan) -> LoadedModel:
    """Loads the target as `check_models` planned. Raises ModelError, LibraryError."""
    return engines_of(settings.parts)[plan.engine].load(plan.path, settings, plan.kv_tokens)
