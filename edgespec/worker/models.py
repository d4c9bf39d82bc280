"""What the worker loads: the draft model, and the tokenizers if the target has another one."""

from __future__ import annotations

from edgespec.core.drafting.settings import MAX_STEP_LEAVES
from edgespec.core.errors import ConfigError
from edgespec.core.protocol.handshake import WorkerIdentity
from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.tokenizer import Translation
from edgespec.shared.keystore import KeyStore
from edgespec.shared.known_answer import require_known_answer
from edgespec.shared.models import resolve_model
from edgespec.worker.config import WorkerSettings, worker_name


def load_drafter(settings: WorkerSettings) -> Drafter:
    """The draft model that the configuration names. Raises ModelError, ConfigError and LibraryError."""
    draft, path = settings.draft, resolve_model(settings.draft.model)
    require_known_answer(path, draft.n_gpu_layers)
    return Drafter(
        path,
        context=draft.context,
        sequences=draft.sequences or MAX_STEP_LEAVES,
        threads=draft.threads,
        gpu_layers=draft.n_gpu_layers,
        requests=draft.requests,
    )


def load_translation(settings: WorkerSettings) -> Translation | None:
    """Between the tokenizers of `draft.target` and `draft.model`; None if they are one, or no target is named.

    Raises ModelError, ConfigError.
    """
    draft = settings.draft
    if not draft.target:
        return None
    if draft.order != "best-first":
        raise ConfigError(f'`draft.target` needs order = "best-first", not "{draft.order}"')
    translation = Translation(resolve_model(draft.target), resolve_model(draft.model))
    return None if translation.same else translation


def identity(
    settings: WorkerSettings, store: KeyStore, drafter: Drafter, translation: Translation | None, leaves: int
) -> WorkerIdentity:
    """What the worker says of itself: a translated draft model speaks the target's tokens. `leaves`: of a step."""
    spoken = drafter if translation is None else translation.tokenizer
    return WorkerIdentity(
        store.identity(),
        worker_name(settings),
        spoken.tokenizer_digest,
        drafter.model_digest,
        spoken.vocab_size,
        leaves,
        store.rotations(),
    )
