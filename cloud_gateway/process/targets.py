"""Chooses the engine of the target, checks the models that the configuration names, and loads the target."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from cloud_gateway.models.headers import (
    Need,
    check_llamacpp,
    check_torch,
    heads_need,
    llamacpp_need,
    spare_sequences,
    torch_need,
)
from cloud_gateway.part import DraftMaker
from cloud_gateway.process.config import GatewaySettings, TargetSection
from edgespec.core.drafting.settings import MAX_REQUESTS
from edgespec.core.errors import ConfigError, ModelError, TokenizerMismatch
from edgespec.shared.folders import expand
from edgespec.shared.hf_vocabulary import vocabulary
from edgespec.shared.installed import require
from edgespec.shared.models import resolve_model
from edgespec.shared.part import require_trials
from edgespec.shared.procstat import available_memory
from edgespec.shared.vocabfiles import gguf_vocabulary

if TYPE_CHECKING:
    from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
    from cloud_gateway.models.target_model.load import Dtype, Vocabulary
    from cloud_gateway.models.target_model.torch import TorchTarget
    from edgespec.core.drafting.translation import Translator

log = logging.getLogger("cloud_gateway.process.loading")
EngineName = Literal["torch", "llamacpp"]
MIN_DRAFT_CELLS = 8192
"""KV cells of the local draft; more if one request may be longer."""
KV_SHARE = 0.9
"""Of the memory beside the weights, for the KV cache if `target.kv_tokens` is 0: passes need some too."""
EXACT_NUMBER = 8
"""Bytes of a key's number in torch on a CPU under `target.exact`; families outside Llama's take fewer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a target that was checked is loaded."""

    path: Path
    engine: EngineName
    kv_tokens: int
    """Tokens that the KV cache of all slots together holds."""


def check_models(settings: GatewaySettings) -> Plan:
    """How to load the target. Takes a fraction of a second: it reads no weights.

    Raises ModelError for a model that cannot be served, TokenizerMismatch if the local draft does not fit,
    ConfigError if there are too many slots.
    """
    options = settings.target
    path = resolve_model(settings.target.model)
    engine = engine_for(options, path)
    require("transformers", "torch" if engine == "torch" else "llama_cpp")
    if engine == "llamacpp":
        check_llamacpp(path, options.n_gpu_layers)
        exact = options.exact == "yes" and not options.n_gpu_layers
        spare_sequences(options.slots, settings.policy.verify_nodes, exact=exact)
    else:
        check_torch(path)
        if options.device.startswith("cuda"):
            from cloud_gateway.models.target_model.load import device_for

            device_for(options.device)
    maker = draft_maker(settings)
    if maker is not None:
        maker.check(engine)
    if settings.sources.heads and engine != "torch":
        raise ModelError('`sources.heads` needs the engine torch: set `target.engine` to "torch", or leave it empty.')

    draft = None
    if settings.local_draft.model and maker is None:
        draft = resolve_model(settings.local_draft.model)
        _check_draft(settings, path, draft)
    return Plan(path, engine, kv_tokens(settings, engine, path, draft))


def draft_maker(settings: GatewaySettings) -> DraftMaker | None:
    """The maker of the local draft if `local_draft.model` names no file."""
    for part in settings.parts:
        if settings.local_draft.model in part.drafts:
            return part.drafts[settings.local_draft.model]
    return None


def _check_draft(settings: GatewaySettings, target: Path, draft: Path) -> None:
    """Raises ConfigError, ModelError or TokenizerMismatch if it cannot draft here for the target."""
    require("llama_cpp")
    if settings.target.slots + (settings.sources.queued_answers > 0) > MAX_REQUESTS:
        raise ConfigError(
            f"`target.slots` is {settings.target.slots}, and a local draft takes {MAX_REQUESTS} requests at once: "
            'lower `target.slots`, or set `local_draft.model` to "".'
        )

    translation_of(target, draft)
    check_llamacpp(draft, settings.local_draft.n_gpu_layers)


def kv_tokens(settings: GatewaySettings, engine: EngineName, path: Path, draft: Path | None) -> int:
    """Tokens that the KV cache holds: `target.kv_tokens`, or as many as all slots can use and memory has room for.

    Raises ModelError if weights and `target.kv_tokens`, or one slot, do not fit.
    """
    options = settings.target
    rows = 1 + settings.policy.verify_nodes
    full = options.kv_tokens or options.slots * (options.context + rows)
    if engine == "llamacpp" and options.n_gpu_layers:
        return full  # how much of it is on the GPU is known to llama.cpp only

    need = need_of(options, engine, path, settings.sources.heads)
    available = available_memory()
    where = "memory"
    if engine == "torch" and _on_cuda(options.device):
        import torch

        available = torch.cuda.mem_get_info(options.device if options.device != "auto" else None)[0]
        where = "the GPU"
    on_gpu = settings.local_draft.n_gpu_layers > 0
    if draft is not None and on_gpu == (where == "the GPU"):
        drafted = _draft_bytes(settings, draft)
    else:
        drafted = 0
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


def draft_cells(settings: GatewaySettings) -> int:
    """KV cells of the local draft, which all requests in slots share."""
    return max(settings.target.context, MIN_DRAFT_CELLS) * (1 + (settings.sources.queued_answers > 0))


def _draft_bytes(settings: GatewaySettings, draft: Path) -> int:
    need = llamacpp_need(draft)
    return need.weights + draft_cells(settings) * need.token


def need_of(options: TargetSection, engine: EngineName, path: Path, heads: Sequence[str] = ()) -> Need:
    """Memory that the target takes with this engine, and the files of heads beside it. Raises ModelError."""
    if engine == "llamacpp":
        return llamacpp_need(path)

    weight = 4 if dtype_for(options) == "float32" else 2
    exact = options.exact != "no" and not _on_cuda(options.device)
    return sum(
        (heads_need(expand(file)) for file in heads), torch_need(path, weight, EXACT_NUMBER if exact else weight)
    )


def dtype_for(options: TargetSection) -> Dtype:
    """`target.dtype` for torch, or what "auto" stands for: bfloat16 on a GPU, what is fast on other processors."""
    if options.dtype != "auto":
        return options.dtype
    if _on_cuda(options.device):
        return "bfloat16"

    from cloud_gateway.models.target_model.load import fast_dtype

    return fast_dtype()


def engine_for(options: TargetSection, path: Path) -> EngineName:
    """`target.engine`, or what "auto" stands for. Raises ModelError if that engine cannot run this model."""
    if options.engine == "auto":
        suits = path.is_file() and options.dtype != "float32" and options.device in ("auto", "cpu")
        if suits and _installed("llama_cpp") and not (options.device == "auto" and _cuda()):
            return "llamacpp"
        return "torch"

    if options.engine == "llamacpp":
        if path.is_dir():
            raise ModelError(
                f"The engine llamacpp reads GGUF files and {path} is a folder: name a GGUF file as `target.model`, or "
                'set `target.engine` to "torch".'
            )
        if options.device.startswith("cuda"):
            raise ModelError(
                '`target.device` is for the engine torch; with llamacpp set `target.n_gpu_layers` and leave it "auto".'
            )
    return cast(EngineName, options.engine)


def translation_of(target: Path, draft: Path) -> Translator | None:
    """Between the tokenizers of target and local draft; None if they are the same.

    Raises TokenizerMismatch if it cannot be: of a target in a folder, or of a kind of tokenizer that is not translated.
    """
    if draft.is_dir():
        raise ModelError(f"Drafts run in llama.cpp, which reads GGUF files, and {draft} is a folder: name a GGUF file.")

    difference = vocabulary(target).difference(gguf_vocabulary(draft))
    if difference is None:
        return None

    try:
        if target.is_dir():
            raise ModelError("and translation needs a target in a GGUF file")
        from cloud_gateway.models.drafts.translated import translator

        return translator(target, draft)
    except ModelError as error:
        raise TokenizerMismatch(
            f"The local draft {draft.name} cannot draft for {target.name}: its tokenizer {difference}, {error}; set "
            "`local_draft.model` to a draft of the target's family, or to nothing."
        ) from error


def load_target(settings: GatewaySettings, plan: Plan) -> tuple[TorchTarget | LlamaCppTarget, Vocabulary, str]:
    """Loads the target as `check_models` planned; returns also device, type of number or engine, and library version,
    for `system_fingerprint`. Raises ModelError, LibraryError."""
    return (_with_llamacpp if plan.engine == "llamacpp" else _with_torch)(settings, plan)


def _with_torch(settings: GatewaySettings, plan: Plan) -> tuple[TorchTarget, Vocabulary, str]:
    import torch

    from cloud_gateway.models.target_model import load
    from cloud_gateway.models.target_model.linear import BLOCK_ROWS
    from cloud_gateway.models.target_model.torch import MAX_LONE_ROWS, TorchTarget

    options = settings.target
    path = plan.path
    dtype = dtype_for(options)
    loaded = load.load(path, dtype, options.device)
    log.info("target %s loaded in %s by torch", path.name, dtype)
    target = TorchTarget(
        loaded.model,
        slots=options.slots,
        context=options.context,
        kv_tokens=plan.kv_tokens,
        threads=options.threads,
        exact=options.exact != "no",
        max_lone_rows=BLOCK_ROWS if options.exact == "yes" else MAX_LONE_ROWS,
    )
    log.log(
        logging.WARNING if options.exact == "yes" and not target.exact else logging.INFO,
        "the target is %s",
        "exact" if target.exact else f"not exact: {target.inexact_because}",
    )
    return target, loaded, f"{target.device} {dtype} {torch.__version__}"


def _with_llamacpp(settings: GatewaySettings, plan: Plan) -> tuple[LlamaCppTarget, Vocabulary, str]:
    from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
    from cloud_gateway.models.target_model.load import load_vocabulary

    options = settings.target
    path = plan.path
    require_trials(settings.parts, path, options.n_gpu_layers)
    vocabulary, ends = load_vocabulary(path)
    target = LlamaCppTarget(
        path,
        eos=frozenset(ends),
        slots=options.slots,
        context=options.context,
        kv_tokens=plan.kv_tokens,
        tree_nodes=settings.policy.verify_nodes,
        threads=options.threads,
        gpu_layers=options.n_gpu_layers,
        exact=options.exact == "yes",
    )
    log.info("target %s loaded by llama.cpp%s", path.name, ", exact" if target.exact else "")
    if options.exact == "yes" and not target.exact:
        log.warning("`target.exact` cannot be had with this model on this machine: a tree's logits differ in bits.")
    return target, vocabulary, f"llamacpp {options.n_gpu_layers} {target.exact} {version('llama-cpp-python')}"


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _on_cuda(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and _cuda())


def _cuda() -> bool:
    """Whether torch could use a GPU. torch takes seconds to import, so it is asked only if a driver is loaded."""
    if not Path("/proc/driver/nvidia").exists():
        return False
    import torch

    return torch.cuda.is_available()
