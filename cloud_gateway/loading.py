"""The models of a gateway, loaded as its configuration says. Takes seconds to minutes: not on the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cloud_gateway import grammar
from cloud_gateway.api.limits import ServedModel
from cloud_gateway.config import GatewaySettings
from cloud_gateway.engine import EngineSettings
from cloud_gateway.grammar import Grammars
from edgespec import __version__
from edgespec.core.errors import ModelError, TokenizerMismatch
from edgespec.shared.modelref import resolve_model

if TYPE_CHECKING:
    from cloud_gateway.drafts.gguf import LocalDraft
    from cloud_gateway.target.torch import TorchTarget
    from cloud_gateway.text import Text

log = logging.getLogger("cloud_gateway.loading")

T = TypeVar("T")
LEAST_DRAFT_CELLS = 8192
"""KV cells of the local draft, unless one request may be longer."""


@dataclass(frozen=True, slots=True)
class Models:
    """What is in memory once loading is over."""

    target: TorchTarget
    text: Text
    local: LocalDraft | None
    tokenizer_digest: bytes
    served: ServedModel
    grammars: Grammars


def load_models(settings: GatewaySettings) -> Models:
    """Loads target and local draft. Raises ModelError, TokenizerMismatch."""
    wish = settings.target
    path = resolve_model(wish.model)
    with _needs("install edgespec with its extra 'gateway'"):
        from cloud_gateway.target import load
        from cloud_gateway.target.torch import TorchTarget
        from cloud_gateway.text import Text

        loaded = load.load(path, wish.dtype, wish.device)
    log.info("target %s loaded in %s", path.name, wish.dtype)
    target = TorchTarget(
        loaded.model,
        slots=wish.slots,
        context=wish.context,
        threads=wish.threads,
        kernels=wish.kernels,
        prefix_cache=wish.prefix_cache,
    )
    served = ServedModel(
        id=path.name.removesuffix(".gguf"),
        created=int(path.stat().st_mtime),
        context=target.context,
        vocab_size=target.vocab_size,
        fingerprint=fingerprint(
            loaded.model_digest, loaded.tokenizer_digest.hex(), str(target.device), *choices(settings)
        ),
    )
    local = _load_draft(settings, loaded.tokenizer_digest, target.vocab_size)
    grammars = Grammars(loaded.tokenizer, target.vocab_size, target.eos)
    text = Text(loaded.tokenizer)
    if text.chat_fault:
        log.warning("%s /v1/chat/completions answers 400; choose another model for chats.", text.chat_fault)
    return Models(target, text, local, loaded.tokenizer_digest, served, grammars)


def _load_draft(settings: GatewaySettings, tokenizer_digest: bytes, vocab_size: int) -> LocalDraft | None:
    wish = settings.local_draft
    if not wish.model:
        return None
    path = resolve_model(wish.model)
    with _needs("install edgespec with its extra 'worker' too, or set `local_draft.model` to \"\""):
        from cloud_gateway.drafts.gguf import LocalDraft

        draft = LocalDraft(
            path,
            context=max(settings.target.context, LEAST_DRAFT_CELLS),
            requests=settings.target.slots,
            threads=wish.threads or len(os.sched_getaffinity(0)),
            prefix_cache=wish.prefix_cache,
            target_vocab_size=vocab_size,
        )
    if draft.tokenizer_digest != tokenizer_digest:
        raise TokenizerMismatch(
            f"The local draft {path.name} has the tokenizer {draft.tokenizer_digest.hex()[:16]} and the target "
            f"{tokenizer_digest.hex()[:16]}; set `local_draft.model` to a draft of the target's family, or to nothing."
        )
    log.info("local draft %s loaded", path.name)
    return draft


def engine_settings(settings: GatewaySettings) -> EngineSettings:
    """The engine's part of the configuration."""
    policy = settings.policy
    return EngineSettings(
        policy=policy.name,
        k=policy.k,
        phi=policy.phi,
        verify_nodes=policy.verify_nodes,
        depth_limit=policy.depth,
        prefill_chunk=settings.target.prefill_chunk,
        queue_limit=settings.api.queue_limit,
        share_seed=policy.share_seed,
        prefer=policy.prefer,
        verification=policy.verification,
    )


def choices(settings: GatewaySettings) -> tuple[str, ...]:
    """The configuration's part of `fingerprint`: what could change the text of a seed."""
    return settings.target.dtype, settings.target.kernels, settings.policy.verification


def fingerprint(model_digest: bytes, *chosen: str) -> str:
    """`system_fingerprint`: another one whenever something changes that could change the text of an answer."""
    import numpy as np
    import torch
    import transformers

    versions = (torch.__version__, transformers.__version__, np.__version__, grammar.version(), __version__)
    facts = "\0".join((model_digest.hex(), *chosen, *versions))
    return f"es_{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


@contextmanager
def _needs(advice: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModelError(f"The package {error.name} is missing; {advice}.") from error


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Runs in a thread that does not keep the process alive, unlike the event loop's own ones."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = work(), None
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            outcome = None, error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=body, name="loading", daemon=True).start()
    return future
