"""Engines that use the part as a gateway does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from cloud_gateway.core.sources.asking import MAKERS
from cloud_gateway.engine.exchange import Recording
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.queue_work import no_queue_work
from cloud_gateway.part import Serving
from cloud_gateway.parts.queued_answers import Answering
from cloud_gateway.parts.queued_answers.archive import KEPT_TOKENS, Archive
from tests.support.echo import MODEL, ByteText
from tests.support.engines import Make, engines

SERVING = Serving(MODEL, cast(Any, ByteText()), list)


@contextmanager
def answering(answers: int = 0, archive: Archive | None = None) -> Iterator[Make]:
    """Like `engines`. `answers`: written to a prompt that waits; `archive`: instead of an empty one."""
    part = Answering(answers, archive or Archive(KEPT_TOKENS))
    recording = part.recording(SERVING)
    assert recording is not None
    makers = {**MAKERS, **part.sources(SERVING)}

    with engines(queue_work=part.queue_work(SERVING) or no_queue_work) as make:

        def make_answering(*models: Any, recorders: Sequence[Recording] = (), **settings: Any) -> Engine:
            return make(*models, recorders=[recording, *recorders], makers=makers, **settings)

        yield make_answering
