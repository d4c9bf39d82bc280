"""The tokens of a worker whose draft model has another tokenizer than the target: the target's, by translation.

Most workers draft for a target with their draft model's tokenizer, so this file imports translation and llama.cpp's
tokenizer only when they are needed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import TYPE_CHECKING

from edgespec.core.errors import ConfigError, ModelError, TokenizerMismatch
from edgespec.core.protocol.names import key_id
from edgespec.llamacpp.drafter import Drafter
from edgespec.shared.models import resolve_model
from edgespec.worker.config import WorkerSettings
from edgespec.worker.tokens import DraftTokens, RefusedTokens, TargetTokens

if TYPE_CHECKING:
    from edgespec.parts.text_translation.translation import Translator

log = logging.getLogger("edgespec.parts.text_translation")

AGAIN_S = 90.0
"""Longest time between two attempts to link with a gateway whose tokenizer was refused, as of the back-off of links."""


class TranslatedTokens(TargetTokens):
    """The target's tokens, from a file that the configuration names or from the gateway."""

    def __init__(self, settings: WorkerSettings, target: str, drafter: Drafter) -> None:
        """`target`: a model as of `resolve_model`, or empty."""
        super().__init__(drafter)
        self._settings = settings
        self._target = target
        self._fetched = b""
        """SHA-256 of the target's tokenizer as the gateway sent it; empty until then."""
        self._latest = super().at_start()

    def at_start(self) -> DraftTokens:
        """Those of the target's file, if one is named and has another tokenizer. Raises ModelError, ConfigError."""
        if not self._target:
            return self._latest

        order = self._settings.draft.order
        if order != "best-first":
            raise ConfigError(f'`draft.target` needs order = "best-first", not "{order}"')

        from edgespec.parts.text_translation.gguf import translation

        draft = resolve_model(self._settings.draft.model)
        pair = translation(resolve_model(self._target), draft, self._drafter.tokenizer_digest)
        self._latest = self._tokens_by(pair)
        return self._latest

    async def after(self, refusal: RefusedTokens) -> DraftTokens:
        """Those that the gateway sends. If they cannot be used, the latest ones again, after up to `AGAIN_S`.

        Raises TokenizerMismatch if this worker is not to translate, or the gateway has no tokenizer to send.
        """
        if self._target or self._settings.draft.order != "best-first":
            raise TokenizerMismatch(f'{refusal.error} Set `draft.order` to "best-first", and no `draft.target`.')

        from edgespec.parts.text_translation import fetching
        from edgespec.parts.text_translation.store import TokenizerStore

        log.info("the target has another tokenizer; fetching it")
        store = TokenizerStore(key_id(refusal.me.key.public), refusal.gateway.paired_at)
        fetch = partial(
            fetching.fetch_tokenizer, refusal.addresses, refusal.me, refusal.gateway.pin, store, refusal.reached
        )
        draft = (resolve_model(self._settings.draft.model), self._drafter.tokenizer_digest)
        try:
            self._fetched, pair = await fetching.fetch_translation(fetch, store, draft, self._fetched)
        except ModelError as error:
            cannot = f"The draft model cannot draft for the target of gateway {refusal.gateway.name}: {error}."
            refusal.explain(f"{cannot} Choose a draft of the target's family, or ask the gateway's operator.")
            await asyncio.sleep(random.SystemRandom().uniform(0.5, 1.0) * AGAIN_S)
            return self._latest

        self._latest = self._tokens_by(pair)
        return self._latest

    def _tokens_by(self, pair: Translator | None) -> DraftTokens:
        """The target's tokens by this translation; those of the draft model if there is none."""
        if pair is None:
            return DraftTokens(self._drafter.tokenizer_digest, self._drafter.vocab_size)
        return DraftTokens(
            pair.target.tokenizer_digest,
            pair.target.vocab_size,
            pair.drafting,
            pair.ranker,
        )
