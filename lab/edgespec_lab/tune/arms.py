"""What `edgespec tune` compares: each source of drafts alone, and merged.

For the arm `answers` the local draft has written an answer to the prompt before, as it does while a request waits
(QueueSpec).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace

from cloud_gateway.core.requests.choices import Choices
from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.core.sources.asking import MAKERS
from cloud_gateway.core.sources.interface import SourceMakers, SourceStart, StateSource
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.drafts import DraftModel
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import LoadedModels, engine_settings
from cloud_gateway.process.targets import check_models, draft_maker
from edgespec.core.drafting.ranking import Asked, Ranker, Spread
from edgespec.core.errors import EdgespecError, ModelError
from edgespec.core.protocol.messages import Sampling
from edgespec_lab.tune.advice import SELF, SOURCES

if TYPE_CHECKING:
    from cloud_gateway.parts.queued_answers.archive import Archive

WARM = "Count to ten."
DRAFT = Speculation(policy="adaptive", prefer="latency", sources=())
GREEDY = Sampling(temperature=0)
ANSWERS = "answers"
"""The source that is given what the draft wrote before; a gateway has it if a part brings it."""
CHUNK = 64
"""Tokens of a prompt that the writing draft reads at once."""
Draft = Literal["none", "local", "self", "queue"]


class Arm(NamedTuple):
    """The options of a request, and which draft model runs beside the target.

    `queue`: none, but one has written an answer.
    """

    asks: Speculation
    draft: Draft = "none"


def arms_with(sources: Sequence[str]) -> dict[str, Arm]:
    """All arms, by name, for the sources that are asked alone and merged."""
    alone = {name: Arm(Speculation(policy="adaptive", sources=(name,))) for name in sources}
    return {
        "plain": Arm(Speculation(policy="plain")),
        **alone,
        "colocated": Arm(Speculation(policy="colocated", k=2), "local"),
        "draft": Arm(DRAFT, "local"),
        "self": Arm(DRAFT, "self"),
        "merge": Arm(Speculation(policy="adaptive", prefer="latency", sources=tuple(sources)), "local"),
        ANSWERS: Arm(Speculation(policy="adaptive", sources=("lookup", ANSWERS)), "queue"),
    }


def sources_of(makers: SourceMakers) -> list[str]:
    """The sources to compare, of those that these make; not one that computes with a model that is not loaded."""
    sources: list[str] = []
    for name in SOURCES:
        if name in makers:
            source = makers[name](SourceStart(()))
            if not isinstance(source, StateSource) or source.wanted:
                sources.append(name)
    return sources


COMPARED = ("colocated",)
"""Policies of parts among those of the arms."""


def self_draft(loaded: LoadedModels, settings: GatewaySettings) -> DraftModel | None:
    """The target's own layers as its draft; None if the settings name no layers. Raises ModelError."""
    local = replace(settings.local_draft, model=SELF, mode="in-turn", cpu=())
    drafting = replace(settings, local_draft=local)
    maker = draft_maker(drafting)
    if maker is None or any(drafting.conflicts()):
        return None

    check_models(drafting)
    return maker.make(loaded.target, drafting, requests=1)


class Arms:
    """Engines over one target, one for each draft beside it, of which one at a time works. Used as a context."""

    left_out: str
    """Why the target's own layers are not measured; empty if they are, or if the settings name none."""

    def __init__(
        self, loaded: LoadedModels, settings: GatewaySettings, curve: Mapping[int, float], choices: Choices
    ) -> None:
        """`curve`: as of `Engine`. `choices`: all policies of the arms are among them."""
        drafts: dict[Draft, DraftModel | None] = {"none": None}
        if loaded.local is not None:
            drafts["local"] = loaded.local

        asked = settings.local_draft.model
        self.left_out = ""
        if asked != SELF:
            try:
                own = self_draft(loaded, settings)
            except ModelError as error:
                self.left_out = str(error)
            else:
                if own is not None:
                    drafts[SELF] = own

        self._writer = loaded.local if asked != SELF else None
        self._earlier: Archive | None = None
        makers = {**MAKERS, **loaded.makers}
        if self._writer is not None and any(ANSWERS in part.sources for part in settings.parts):
            from cloud_gateway.parts.queued_answers.archive import KEPT_TOKENS, Archive
            from cloud_gateway.parts.queued_answers.source import maker

            drafts["queue"] = None
            self._earlier = Archive(KEPT_TOKENS)
            makers[ANSWERS] = maker(self._earlier)
        self._eos = frozenset(loaded.target.eos)
        self._render = loaded.text.render_chat
        self._engines = dict[Draft, Engine]()
        for name, model in drafts.items():
            made = engine_settings(settings, choices, makers)
            self._engines[name] = Engine(loaded.target, model, made, curve=curve)
        self._arms = arms_with(sources_of(makers))
        self.names = [name for name, arm in self._arms.items() if arm.draft in drafts]
        self._written_s = list[float]()

    @property
    def written_s(self) -> float | None:
        """Median seconds in which the local draft wrote an answer; None if it wrote none."""
        return median(self._written_s[1:]) if self._written_s[1:] else None  # the first one was for WARM

    async def __aenter__(self) -> Arms:
        for engine in self._engines.values():
            engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for engine in self._engines.values():
            engine.stop()

    async def compare(
        self, prompts: Sequence[str], count: int, done: Callable[[], object] = lambda: None
    ) -> list[dict[str, Usage]]:
        """Usage of every arm's completion of each prompt, in turns, each prompt beginning with another arm.

        All answer WARM before, which is not returned. `done` is called after each completion. Raises ModelError.
        """
        found: list[dict[str, Usage]] = []
        for number, prompt in enumerate([WARM, *prompts]):
            tokens = self._render([{"role": "user", "content": prompt}])
            shift = number % len(self.names)
            found.append({})
            for name in [*self.names[shift:], *self.names[:shift]]:
                arm = self._arms[name]
                scope = self._write(tokens, count) if arm.draft == "queue" else b""
                found[-1][name] = await self._completion(arm, tokens, count, scope)
                done()

        return found[1:]

    def _write(self, prompt: Sequence[int], count: int) -> bytes:
        """Lets the local draft write an answer, which requests of the scope returned are given; none if it has no
        room for the prompt. No engine works meanwhile."""
        draft = self._writer
        written = list[int]()
        scope = f"prompt {len(self._written_s)}".encode()
        assert draft is not None
        assert self._earlier is not None
        ranker = Ranker(GREEDY, prompt, spread=Spread(fixed=1.0))
        began = time.perf_counter()
        with suppress(EdgespecError):
            draft.open(scope, prompt)
            try:
                while draft.backlog(scope) > 1:
                    draft.catch_up(scope, CHUNK)
                while len(written) < count and not self._eos.intersection(written[-1:]):
                    written += draft.draft([Asked(scope, [()], 1, ranker)])[0][0].tokens
                    ranker.committed(written[-1:])
                    draft.commit(scope, written[-1:])
            finally:
                draft.close(scope)
        self._written_s.append(time.perf_counter() - began)
        self._earlier.keep(scope, prompt, written)
        return scope

    async def _completion(self, arm: Arm, prompt: Sequence[int], count: int, scope: bytes) -> Usage:
        wanted = GenerationRequest(prompt, count, GREEDY, speculation=arm.asks, cache_scope=scope)
        _, end = await self._engines[arm.draft].submit(wanted).whole()
        if end.error is not None:
            raise ModelError(end.error)
        return end.usage
