"""Loads the models that the configuration names. Takes seconds to minutes, so it does not run on the event loop.

Then `measure` times the target's passes, and `spare_rounds` keeps Python's cycle collector away from the models.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec.structs import replace

from cloud_gateway.api.generation import ServedModel
from cloud_gateway.core.limits.rooms import RoomsMaker, WholeRooms
from cloud_gateway.core.limits.visits import QUEUE_LIMIT
from cloud_gateway.core.requests.choices import CORE, Choices
from cloud_gateway.core.sources.asking import MAKERS
from cloud_gateway.core.sources.interface import SourceMaker, SourceMakers
from cloud_gateway.core.verify.accept import FlatTree, flatten
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.loop import EngineSettings
from cloud_gateway.models.target_model import LoadedTarget, Target, Work
from cloud_gateway.part import GatewayPart
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.targets import (
    Plan,
    beside_target,
    check_models,
    draft_cells,
    draft_class,
    draft_maker,
    draft_requests,
    engines_of,
    load_target,
)
from edgespec import __version__
from edgespec.shared.models import resolve_model
from edgespec.shared.part import require_trials, thread_rule

if TYPE_CHECKING:
    from cloud_gateway.api.grammars import GrammarEngine, Grammars
    from cloud_gateway.api.parameters import Parameter
    from cloud_gateway.links.link import TokenizerOffer
    from cloud_gateway.models.drafts import IdlingDraft
    from cloud_gateway.models.text import Text


log = logging.getLogger("cloud_gateway.process.loading")


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """The loaded models and what was derived from them."""

    target: LoadedTarget
    text: Text
    local: IdlingDraft | None
    tokenizer_digest: bytes
    served: ServedModel
    grammars: Grammars | None
    """None if no part compiles any."""
    offer: TokenizerOffer | None = None
    """The target's tokenizer, for workers with another one."""
    makers: SourceMakers = field(default_factory=dict)
    """Of the sources that compute with the target's states."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the API that the target cannot serve, each with the reason."""

    def idle(self) -> None:
        """To be called on the engine's thread when no request waits: may try other numbers of threads."""
        self.target.idle()
        if self.local is not None:
            self.local.idle()


def load_models(
    settings: GatewaySettings,
    plan: Plan | None = None,
    doing: Callable[[str], None] = log.info,
) -> LoadedModels:
    """Loads target and local draft; `plan` is what `check_models` returned, if it was called before; `doing` is
    called with each step.

    Raises ModelError, TokenizerMismatch, LibraryError.
    """
    plan = plan or check_models(settings)
    doing(f"checking and loading the target {plan.path.name} by {plan.engine}")
    path = plan.path
    loaded = load_target(settings, plan)
    target = loaded.target
    vocabulary = loaded.vocabulary

    facts = vocabulary.tokenizer_digest.hex(), loaded.made_by, *choices(settings)
    served = ServedModel(
        id=path.name.removesuffix(".gguf"),
        created=int(path.stat().st_mtime),
        context=target.context,
        vocab_size=target.vocab_size,
        fingerprint=fingerprint(vocabulary.model_digest, *facts),
    )

    if settings.local_draft.model:
        doing(f"checking and loading the local draft {settings.local_draft.model}")
    local = _load_draft(settings, plan, target)

    doing("loading the tokenizer and grammars")
    makers = _load_beside(settings, target, vocabulary.model_digest)
    grammars = make_grammars(settings, vocabulary.tokenizer, target.vocab_size, target.eos)

    from cloud_gateway.models.text import Text

    text = Text(vocabulary.tokenizer)
    if text.chat_fault:
        log.warning("%s /v1/chat/completions answers 400; choose another model for chats.", text.chat_fault)

    offer = offer_of(settings.parts, path)
    digest = vocabulary.tokenizer_digest
    return LoadedModels(target, text, local, digest, served, grammars, offer, makers, loaded.refuses)


def offer_of(parts: Sequence[GatewayPart], target: Path) -> TokenizerOffer | None:
    """The first part's offer of this target's tokenizer to workers."""
    for part in parts:
        if part.other_tokenizers is not None:
            return part.other_tokenizers.offer(target)

    return None


def _load_draft(settings: GatewaySettings, plan: Plan, target: Target) -> IdlingDraft | None:
    options = settings.local_draft
    if not options.model:
        return None

    requests = draft_requests(settings)
    maker = draft_maker(settings)
    if maker is not None:
        return maker.make(target, settings, requests)

    path = resolve_model(options.model)
    require_trials(settings.parts, path, options.n_gpu_layers)
    engine = engines_of(settings.parts)[plan.engine]
    draft = draft_class(settings.parts, engine, plan.path, path)(
        path,
        context=draft_cells(settings),
        requests=requests,
        threads=options.threads,
        thread_rule=thread_rule(settings.parts),
        gpu_layers=options.n_gpu_layers,
        target_vocab_size=target.vocab_size,
    )
    log.info("local draft %s loaded", path.name)
    return draft


def _load_beside(settings: GatewaySettings, target: Target, digest: bytes) -> SourceMakers:
    """Makers of the sources that compute with the target's states, whose models are loaded now."""
    makers: dict[str, SourceMaker] = {}
    for beside in beside_target(settings):
        makers.update(beside.load(target, digest, settings))
    return makers


def parameters_of(parts: Sequence[GatewayPart]) -> Sequence[Parameter]:
    """All parameters of requests that these parts serve."""
    parameters: list[Parameter] = []
    for part in parts:
        parameters += part.parameters()
    return parameters


def grammar_engine(settings: GatewaySettings) -> GrammarEngine | None:
    """That of the first part which has one."""
    for part in settings.parts:
        if isinstance(part, GatewayPart) and part.grammars is not None:
            return part.grammars
    return None


def make_grammars(settings: GatewaySettings, tokenizer: Any, vocab_size: int, eos: frozenset[int]) -> Grammars | None:
    """The compiler of grammars for this tokenizer, or None if no part brings one."""
    engine = grammar_engine(settings)
    if engine is None:
        return None
    return engine.make(tokenizer, vocab_size, eos)


def engine_settings(
    settings: GatewaySettings,
    choices: Choices = CORE,
    makers: SourceMakers = MAKERS,
    default_sources: Sequence[str] = (),
) -> EngineSettings:
    """The engine's part of the configuration. `makers`: of all sources in `choices`. `default_sources`: beside those
    that the configuration names."""
    sources = dict.fromkeys((*settings.policy.sources, *default_sources))
    return EngineSettings(
        replace(settings.policy, sources=tuple(sources)),
        QUEUE_LIMIT,
        methods=choices.methods,
        policies=choices.policies,
        makers=makers,
        make_rooms=rooms_of(settings.parts),
    )


def rooms_of(parts: Sequence[GatewayPart]) -> RoomsMaker:
    """What decides who has room in the KV cache: the first part that has a rule, or the core's."""
    for part in parts:
        if part.rooms is not None:
            return part.rooms

    return WholeRooms


def choices(settings: GatewaySettings) -> tuple[str, ...]:
    """What was chosen of all that is in `fingerprint`: what could change the text of a seed."""
    engine = grammar_engine(settings)
    versions = () if engine is None else (engine.version(),)
    return settings.target.exact, settings.policy.verification, *versions


def fingerprint(model_digest: bytes, *chosen: str) -> str:
    """`system_fingerprint`: differs whenever something differs that could change the text of a completion."""
    import numpy as np
    import transformers

    versions = (transformers.__version__, np.__version__, __version__)
    facts = "\0".join((model_digest.hex(), *chosen, *versions))
    return f"es_{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


ROWS = (1, 4, 16, 2, 8, 32)
"""In the order measured: what a limit cuts off matters least."""
LIMIT_S = 1.0
"""No further row count is begun after this time. The start of a gateway takes several seconds anyway."""
PROMPT = 16
"""Tokens in the slot: longer prompts cost more, and are learnt from real passes."""


def measure(target: Target, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Rows -> seconds: the second of two passes each, since the first one also allocates memory.

    Call it before the engine starts, which owns the target from then on.
    """
    slot, _ = target.open([0] * PROMPT, room=PROMPT + max(ROWS))
    curve: dict[int, float] = {}
    began = clock()
    try:
        target.prefill(slot, [0] * (PROMPT - 1))
        for rows in ROWS:
            if curve and clock() - began > LIMIT_S:
                break
            work = [Work(slot, _chain(rows))]
            target.verify(work)
            before = clock()
            target.verify(work)
            curve[rows] = max(clock() - before, 0.0)
    finally:
        target.close(slot)

    return curve


def _chain(rows: int) -> FlatTree:
    tree = CandidateTree([0] * PROMPT)
    node = tree.root
    for _ in range(rows - 1):
        node = tree.add_local(node, 0, 1.0, 1.0) or node
    return flatten(tree.root, tree.best(rows))


ALLOCATIONS = 20_000
"""Container objects made before the youngest generation is collected. A round of one request
leaves about 10, since pruned candidates are freed at once (core/drafting/tree.py); what else the process makes, and
keeps for long, would start it at Python's 700 in the middle of rounds. What waits for it stays below 10 MB."""
SWEEP_S = 30.0
"""Between full collections. An ended link leaves cycles with its TLS buffers, about a quarter of a megabyte; links grow
so old that the younger generations' collections never see them again, and the oldest one's comes after hours.
"""


def spare_rounds() -> None:
    """Call once, when the models are loaded: what exists then is taken for permanent and never looked through again.

    With torch and a tokenizer loaded a full collection looks through half a million objects, which stops every thread.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, 10, 10)


async def sweep() -> NoReturn:
    """Frees what ended connections leave, until it is cancelled: some milliseconds each time, after `spare_rounds`."""
    while True:
        await asyncio.sleep(SWEEP_S)
        gc.collect()
