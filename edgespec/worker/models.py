"""What the worker loads: the draft model, and the tokenizers if the target has another one; and at which priority.

Linux has a nice value for each thread. The threads that compute get the lowest, so that drafting yields also if no
systemd unit sets one; the event loop, which sees the owner's return and stops them, keeps the process's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from edgespec.core.drafting.settings import MAX_STEP_LEAVES
from edgespec.core.errors import ConfigError
from edgespec.core.protocol.handshake import WorkerIdentity
from edgespec.llamacpp.drafter import Drafter
from edgespec.shared.keystore import KeyStore
from edgespec.shared.models import resolve_model
from edgespec.shared.part import require_trials
from edgespec.worker.config import WorkerSettings, worker_name

if TYPE_CHECKING:
    from edgespec.core.drafting.translation import Translator


def load_drafter(settings: WorkerSettings) -> Drafter:
    """The draft model that the configuration names. Raises ModelError, ConfigError and LibraryError."""
    draft = settings.draft
    path = resolve_model(settings.draft.model)
    require_trials(settings.parts, path, draft.n_gpu_layers)
    return Drafter(
        path,
        context=draft.context,
        sequences=draft.sequences or MAX_STEP_LEAVES,
        threads=draft.threads,
        gpu_layers=draft.n_gpu_layers,
        requests=draft.requests,
    )


def load_translation(settings: WorkerSettings, drafter: Drafter) -> Translator | None:
    """Between the tokenizers of `draft.target` and `draft.model`; None if they are one, or no target is named.

    Raises ModelError, ConfigError.
    """
    draft = settings.draft
    if not draft.target:
        return None
    if draft.order != "best-first":
        raise ConfigError(f'`draft.target` needs order = "best-first", not "{draft.order}"')

    from edgespec.llamacpp.tokenizer import translation  # most workers translate nothing

    return translation(resolve_model(draft.target), resolve_model(draft.model), drafter.tokenizer_digest)


def translated(me: WorkerIdentity, drafter: Drafter, translation: Translator | None) -> WorkerIdentity:
    spoken = drafter if translation is None else translation.target
    return replace(me, tokenizer_digest=spoken.tokenizer_digest, vocab_size=spoken.vocab_size)


def identity(
    settings: WorkerSettings, store: KeyStore, drafter: Drafter, translation: Translator | None, leaves: int
) -> WorkerIdentity:
    """What the worker says of itself: a translated draft model speaks the target's tokens. `leaves`: of a step."""
    digests = (drafter.tokenizer_digest, drafter.model_digest)
    name = worker_name(settings)
    own = store.identity(), name, *digests, drafter.vocab_size, leaves, store.rotations()
    me = WorkerIdentity(*own, requests=settings.draft.requests)
    return translated(me, drafter, translation)


Result = TypeVar("Result")

LOWEST_NICE = 19
"""Not SCHED_IDLE: a thread of that class that is preempted while it holds Python's lock stops the event loop for longer
(dev/decisions/000-first-thirty.md, 026)."""


def lower_thread() -> None:
    """Gives this thread, and those that it starts, the lowest nice value. Always permitted."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_NICE)


def run_lowered(work: Callable[[], Result]) -> Result:
    """The result of `work`, or what it raises, from a thread of the lowest nice value."""
    with ThreadPoolExecutor(1, initializer=lower_thread) as pool:
        return pool.submit(work).result()
