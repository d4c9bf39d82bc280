"""A gateway process and OpenAI's client: a right prediction saves passes, and no prediction changes the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from edgespec.shared import models
from edgespec_lab.rig import Rig

pytestmark = pytest.mark.live
PROMPT = "Explain in a few sentences why leaves turn red in autumn."
TOKENS = 64


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    target = str(models.quantised())
    rig = Rig(tmp_path_factory.mktemp("stage"), target, target, None, exact=True)
    with rig.linked() as stage:
        key = stage.gateway_command("keys", "create", "--name", "private", "--json")["key"]
        yield openai.OpenAI(base_url=stage.api, api_key=key)


def ask(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=TOKENS,
        temperature=0.8,
        seed=3,
        # The same prompt is asked again and again: no source is to find the text of earlier completions.
        extra_body={"edgespec": {"usage": True, "sources": ["lookup"]}},
        **more,
    )


def predicting(text: str) -> Any:
    return {"type": "content", "content": text}


def test_the_answer_as_its_own_prediction_comes_in_fewer_passes(client: openai.OpenAI) -> None:
    plain = ask(client)
    text = plain.choices[0].message.content
    right = ask(client, prediction=predicting(text))
    wrong = ask(client, prediction=predicting(Path(__file__).read_text()))

    assert right.choices[0].message.content == wrong.choices[0].message.content == text
    rounds = [answer.usage.model_extra["edgespec"]["rounds"] for answer in (plain, right, wrong)]
    assert rounds[1] <= rounds[0] / 3 and rounds[2] >= 0.9 * rounds[0]
    details = right.usage.completion_tokens_details
    assert details.accepted_prediction_tokens >= TOKENS - 2 and details.rejected_prediction_tokens <= 2
    assert wrong.usage.completion_tokens_details.rejected_prediction_tokens > TOKENS


def test_a_streams_usage_has_the_counts(client: openai.OpenAI) -> None:
    chunks = [*ask(client, prediction=predicting("Leaves"), stream=True, stream_options={"include_usage": True})]
    details = chunks[-1].usage.completion_tokens_details
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens > 0
