"""Source `answers`: drafting with other answers to the same prompt (QueueSpec, docs/queued-answers.md).

While a request waits for a slot, idle workers and the local draft write answers to its prompt. Earlier completions of
the same conversation are others. Both are candidates only: the target decides every token.

`source` suggests what followed in them. `archive` has the completions, and `keeping` puts them there. `jobs` says which
answers are to be written; `workers` and `local` have them written, `written` is one by a worker. `work` fills the
engine's seam.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from cloud_gateway.part import Foundation, GatewayPart, Running
from edgespec.shared.part import Settings
from edgespec.shared.settings import Removed, Section

if TYPE_CHECKING:
    from cloud_gateway.core.sources.interface import SourceMakers
    from cloud_gateway.engine.exchange import Recording
    from cloud_gateway.engine.queue_work import MakeQueueWork
    from cloud_gateway.part import Serving
    from cloud_gateway.parts.queued_answers.archive import Archive

NAME = "answers"
"""Of the source, in `policy.sources`."""
MAX_ANSWERS = 8
"""QueueSpec's figures end there; each further answer agrees in less that the others do not have."""
REMOVED = {
    "sources.queued_tokens": Removed("a queued answer has at most 256 tokens.", (256,)),
    "sources.kept_tokens": Removed(
        "source `answers` keeps 262144 tokens, and none with `api.prefix_cache = false`.", (262144,)
    ),
}


class AnswersSection(Section, frozen=True, kw_only=True):
    """[sources]: how many answers are written to a prompt while its request waits for a slot."""

    queued_answers: Annotated[int, Meta(ge=0, le=MAX_ANSWERS)] = 0


class Answering(Running):
    """Serves the requests of one gateway that name the source."""

    def __init__(self, answers: int, archive: Archive) -> None:
        """`answers`: written to one prompt; `archive`: of earlier completions."""
        self._answers = answers
        self._archive = archive

    def recording(self, serving: Serving) -> Recording | None:
        from cloud_gateway.parts.queued_answers.keeping import Keeping

        return Keeping(self._archive)

    def sources(self, serving: Serving) -> SourceMakers:
        from cloud_gateway.parts.queued_answers.source import maker

        return {NAME: maker(self._archive)}

    def queue_work(self, serving: Serving) -> MakeQueueWork | None:
        from cloud_gateway.parts.queued_answers.work import AnswerWork

        if not self._answers:
            return None
        return lambda lent: AnswerWork(self._answers, lent)


def start_answering(gateway: Foundation) -> Running:
    """An archive for each gateway."""
    from cloud_gateway.parts.queued_answers.archive import KEPT_TOKENS, Archive

    return Answering(gateway.settings.of(AnswersSection).queued_answers, Archive(KEPT_TOKENS))


def drafted_beside(settings: Settings) -> int:
    """The local draft writes one answer at a time."""
    return int(settings.of(AnswersSection).queued_answers > 0)


PART = GatewayPart(
    "queued_answers",
    {"sources": AnswersSection},
    removed=REMOVED,
    example=Path(__file__).with_name("gateway.toml"),
    start=start_answering,
    sources=(NAME,),
    drafted_beside=drafted_beside,
    own_engine_only=("sources.queued_answers",),
)
