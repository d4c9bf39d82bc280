"""The worker's draft model and its description for the handshake, and the priority of the threads that compute.

Linux has a nice value for each thread. The threads that compute get the lowest, so that drafting yields also if no
systemd unit sets one; the event loop, which sees the owner's return and stops them, keeps the process's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from edgespec.core.drafting.settings import MAX_STEP_LEAVES
from edgespec.core.protocol.handshake import WorkerIdentity
from edgespec.llamacpp.drafter import Drafter
from edgespec.shared.keystore import KeyStore
from edgespec.shared.models import resolve_model
from edgespec.shared.part import Part, require_trials, thread_rule
from edgespec.worker.config import WorkerSettings, worker_name
from edgespec.worker.part import WorkerPart
from edgespec.worker.step_timer import StepTimer
from edgespec.worker.tokens import DraftTokens, TargetTokens


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
        thread_rule=thread_rule(settings.parts),
        gpu_layers=draft.n_gpu_layers,
        requests=draft.requests,
    )


def target_tokens(parts: Sequence[Part], settings: WorkerSettings, drafter: Drafter) -> TargetTokens:
    """The choice of tokens of the first part that brings one, or the core's."""
    for part in parts:
        if isinstance(part, WorkerPart) and part.target_tokens is not None:
            return part.target_tokens(settings, drafter)

    return TargetTokens(drafter)


def step_timer(parts: Sequence[WorkerPart], settings: WorkerSettings, drafter: Drafter) -> StepTimer:
    """That of the first part which brings one, or the core's."""
    for part in parts:
        if part.timer is not None:
            return part.timer(settings, drafter)

    return StepTimer()


def drafting_in(me: WorkerIdentity, tokens: DraftTokens) -> WorkerIdentity:
    """The same worker, whose messages have these tokens."""
    return replace(me, tokenizer_digest=tokens.tokenizer_digest, vocab_size=tokens.vocab_size)


def identity(
    settings: WorkerSettings,
    store: KeyStore,
    drafter: Drafter,
    tokens: DraftTokens,
    leaves: int,
) -> WorkerIdentity:
    """A worker's description of itself for the handshake. `leaves`: of a draft step."""
    return WorkerIdentity(
        store.identity(),
        worker_name(settings),
        tokens.tokenizer_digest,
        drafter.model_digest,
        tokens.vocab_size,
        leaves,
        store.rotations(),
        requests=settings.draft.requests,
    )


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
