"""`tools.bench live`: its arms, their order, what is read of a completion, and what the table makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools.bench.live import report
from tools.bench.live.arms import BASE, Arm, chosen
from tools.bench.live.report import Answer, Batch, read

FINAL = """{"choices":[],"created":1795213039,"id":"chatcmpl-5t8r","model":"target.gguf",
"system_fingerprint":"b0-unknown","object":"chat.completion.chunk","usage":{"completion_tokens":8,"prompt_tokens":37,"total_tokens":45,
"prompt_tokens_details":{"cached_tokens":0}},"timings":{"cache_n":0,"prompt_n":37,"prompt_ms":1188.647,
"prompt_per_token_ms":32.125594594594595,"prompt_per_second":31.1278285310946,"predicted_n":8,"predicted_ms":423.693,
"predicted_per_token_ms":60.52757142857143,"predicted_per_second":16.52139638842275,"draft_n":5,"draft_n_accepted":4}}"""
"""The last chunk of a llama-server with a draft model, as it was recorded."""


def piece(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def arms(*families: str) -> list[Arm]:
    return chosen(families, [1, 2], [3], ["mod"], [1, 2])


def answer(ms: float, text: str = "a", tokens: int = 10) -> Answer:
    times = [ms / 1000 * (number + 1) for number in range(tokens)]
    return Answer(text, tokens, 7, times, times[-1], 5, 9 * ms, 9, 4, 2)


def batch(arm: str, number: int, ms: float, text: str = "a", others: float = 0.0) -> Batch:
    return Batch(arm, 1, number, [answer(ms, text)], ms / 100, others, 0.5, neighbour=False)


def test_a_recorded_completion_of_llama_server_is_read() -> None:
    chunks = [(0.5, piece("")), (1.2, piece("A")), (1.2, piece(" b")), (1.5, piece("c")), (1.6, json.loads(FINAL))]
    found = read(chunks)
    assert (found.text, found.tokens, found.prompt_tokens) == ("A bc", 8, 37)
    assert (found.drafted, found.accepted, found.passes) == (5, 4, 4)
    assert found.server_ms == pytest.approx(423.693) and found.total_s == 1.6
    assert found.times == [1.2, 1.2, 1.5]
    assert found.decoding_ms == pytest.approx(423.693 / 7) and found.whole_ms == 200, "its first token is the prompt's"


def test_ratios_are_paired_and_disturbed_batches_left_out() -> None:
    compared = arms("plain", "colocated", "llama-server")
    found = [batch(arm.name, number, 30.0) for arm in compared for number in range(3)]
    found += [batch("plain", 3, 300.0), batch(BASE, 3, 100.0), batch("plain", 4, 900.0, others=0.5)]
    found += [batch(BASE, 4, 900.0, "b", others=0.5)]
    runs = report.Runs(compared, found)
    assert runs.ratio(BASE, "plain", report.whole) == [1.0, 0.3333, 1.0]
    assert max(runs.values("plain", report.whole)) == 300.0, "900 ms was disturbed"
    assert runs.same(BASE, "plain") == "4/5", "texts count, disturbed or not"
    assert report.row(runs, compared[0], 1)["undisturbed"] == "4/5"
