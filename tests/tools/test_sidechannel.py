"""The attack on the event stream: it finds prompts where something leaks, and none where nothing does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cloud_gateway.api.frames import FRAME_BYTES, Frames
from cloud_gateway.api.sse import DONE
from tools.sidechannel.forest import Forest
from tools.sidechannel.judge import hits, interval
from tools.sidechannel.tap import Record

PROMPTS, SEEDS, TOKENS, ROUND_S = 20, 6, 48, 0.02


def rounds(prompt: int, seed: int) -> list[Record]:
    """Seconds and bytes of the events of one completion: texts and right drafts are its prompt's, save one in six."""
    own, any_other = np.random.default_rng(prompt), np.random.default_rng([prompt, seed])
    letters, right = own.integers(1, 9, TOKENS), own.random(TOKENS) < own.uniform(0.3, 0.8)
    changed = any_other.random(TOKENS) < 1 / 6
    letters[changed], right[changed] = any_other.integers(1, 9, changed.sum()), any_other.random(changed.sum()) < 0.5
    events, now, at = list[Record](), 0.05, 0
    while at < TOKENS:
        end = at + 1
        while end < TOKENS and end - at < 4 and right[end]:
            end += 1
        now += ROUND_S * any_other.uniform(0.95, 1.1)
        events.append((now, 270 + int(letters[at:end].sum())))
        at = end
    return events


def as_made(events: Sequence[Record]) -> list[Record]:
    return list(events)


def even(events: Sequence[Record]) -> list[Record]:
    stream, seen = Frames(FRAME_BYTES, 0.0), list[Record]()
    for now, size in events:
        while stream.due <= now:
            seen.append((stream.due, len(stream.frame(stream.due))))
        stream.add(b"x" * size)
    stream.end(DONE)
    while not stream.ended:
        seen.append((stream.due, len(stream.frame(stream.due))))
    return seen


def attacked(form: Callable[[Sequence[Record]], list[Record]]) -> tuple[int, int]:
    rows: list[dict[str, Any]] = [
        {"prompt": prompt, "seed": seed, "records": form(rounds(prompt, seed))}
        for prompt in range(PROMPTS)
        for seed in range(SEEDS)
    ]
    return hits(rows, trees=30)


@pytest.mark.claim("the-attack-on-an-even-stream-finds-at-most-twice-chance")
def test_the_attack_finds_the_prompt_of_a_stream_as_made() -> None:
    found, of = attacked(as_made)
    assert found / of > 10 / PROMPTS


@pytest.mark.claim("the-attack-on-an-even-stream-finds-at-most-twice-chance")
def test_the_attack_on_an_even_stream_finds_at_most_twice_chance() -> None:
    found, of = attacked(even)
    assert interval(found, of)[0] <= 2 / PROMPTS, f"{found} of {of}"


def test_the_forest_learns_what_separates_and_no_more() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(5), 40)
    noise = rng.random((200, 8))
    signal = np.column_stack([noise, labels + 0.3 * rng.random(200)])
    train = np.arange(200) % 2 == 0
    assert (Forest(signal[train], labels[train]).predict(signal[~train]) == labels[~train]).mean() > 0.95
    assert (Forest(noise[train], labels[train]).predict(noise[~train]) == labels[~train]).mean() < 0.4


def test_the_interval_is_wilsons() -> None:
    assert interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert interval(0, 100)[0] == pytest.approx(0.0)
