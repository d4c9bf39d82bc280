"""`edgespec learn`: a draft learns from a target's own text, so that it is right more often (docs/learning.md).

A worker can also learn while its owner is away, from the requests that it drafts for, if their API keys consented. The
gateway's part of this name says which ones did.

Public, by module:

- `consent`: `Consent`, `Consents`, `encode`, `KIND`, `Learn`, `MAX_KEYS`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from edgespec.parts.healing.verb import LearnVerb
from edgespec.shared.settings import Section
from edgespec.worker.part import RunningPart, WorkerPart, WorkerProcess

if TYPE_CHECKING:
    from edgespec.shared.control import Handler


class LearnSection(Section, frozen=True):
    """[learn]: whether this worker learns from what it drafts for, and how much it keeps of it."""

    enabled: bool = False
    days: Annotated[int, Meta(ge=1, le=365)] = 14
    megabytes: Annotated[int, Meta(ge=1, le=65536)] = 64


class NotLearning(RunningPart):
    """A worker that keeps nothing."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"learn_forget": _nothing_to_forget}


async def _nothing_to_forget(who: str) -> dict[str, object]:
    return {"texts": 0}


def _start(worker: WorkerProcess) -> RunningPart:
    """Deletes what was kept, if the worker does not learn any more: it would not see that consent has ended.

    Raises KeyStoreError.
    """
    section = worker.settings.of(LearnSection)
    if section.enabled:
        from edgespec.parts.healing.learning import Learning

        return Learning(section, worker)

    folder = worker.state_dir / "learning"
    if folder.exists():
        from edgespec.parts.healing.store import delete_all

        delete_all(folder)
    return NotLearning()


PART = WorkerPart(
    "healing",
    {"learn": LearnSection},
    verbs=[LearnVerb()],
    example=Path(__file__).with_name("worker.toml"),
    start=_start,
    handlers=["learn_forget"],
)
