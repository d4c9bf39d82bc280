"""Why the local draft was not asked: each completion's usage says it, on the driven clock."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_gateway.api.usage import usage_extension
from cloud_gateway.core.requests.request import GenerationRequest, Usage
from edgespec.core.protocol.messages import Sampling
from edgespec.llamacpp.drafter import DraftMemoryError
from tests.support.engines import complete, engines
from tools.doubles.engines import TableDraft, TableTarget

PASS_S = 0.04
pytestmark = pytest.mark.driven


def drafting(step_s: float = 0.004, token_s: float = 0.0001, kind: type[TableDraft] = TableDraft) -> TableDraft:
    draft = kind(right=0.8)
    draft.step_s = step_s
    draft.token_s = token_s
    return draft


async def usage_of(draft: TableDraft | None, **settings: Any) -> Usage:
    """The reason for one request; the policy is `adaptive` if no other is named."""
    with engines(curve=dict.fromkeys((1, 2, 4, 8, 16, 32), PASS_S)) as make:
        engine = make(None, draft, TableTarget(slots=1, pass_s=PASS_S), **settings)
        wanted = GenerationRequest([0, *range(20)], 30, Sampling(temperature=0), ignore_eos=True)
        return (await complete(engine, wanted))[1].usage


async def test_a_draft_that_pays_needs_no_reason() -> None:
    usage = await usage_of(drafting())
    assert usage.local_draft_passes > 0 and usage.why_not_local is None


async def test_without_a_draft_the_setting_is_named() -> None:
    usage = await usage_of(None)
    assert usage.why_not_local == "there is no local draft (`local_draft.model`)"
    assert usage_extension(usage).why_not_local == usage.why_not_local


async def test_a_policy_that_asks_no_draft_is_named() -> None:
    usage = await usage_of(drafting(), policy="plain")
    assert usage.local_draft_passes == 0 and usage.why_not_local == "policy plain did not ask it"


async def test_a_draft_without_room_is_the_reason() -> None:
    class Full(TableDraft):
        def open(self, *_: object) -> None:
            raise DraftMemoryError("the draft model serves 1 requests already")

    usage = await usage_of(drafting(kind=Full))
    assert usage.why_not_local == "the local draft has no room for this request"
