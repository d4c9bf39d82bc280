"""At temperature 1 the distribution of completions is plain vLLM's, whatever is drafted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from edgespec_vllm.messages import Chain

from integrations.vllm.live.conftest import ROWS, Engine

SAMPLES = 4000
TOKENS = 3
PROMPT = [504, 3575, 282, 4649, 314]
ALLOWED = [28, 198, 30, 284]
"""Few tokens, so that each completion of TOKENS is seen often."""


def samples(engine: Engine, *, offload: bool) -> Counter[tuple[int, ...]]:
    """How often each completion came."""
    found: Counter[tuple[int, ...]] = Counter()
    while found.total() < SAMPLES:
        batch = [PROMPT] * min(ROWS, SAMPLES - found.total())
        texts = engine.generate(
            batch, TOKENS, offload=offload, temperature=1.0, allowed_token_ids=ALLOWED, ignore_eos=True
        )
        found.update(map(tuple, texts))

    return found


def deviation(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> float:
    """Two-sample chi² over completions, in standard deviations above its mean; rare completions are one cell."""
    common = {text for text in one | other if one[text] + other[text] >= 20}
    cells = [(one[text], other[text]) for text in common]
    cells.append((one.total() - sum(a for a, _ in cells), other.total() - sum(b for _, b in cells)))
    chi2 = sum((a - b) ** 2 / (a + b) for a, b in cells if a + b)  # both have SAMPLES
    freedom = len(cells) - 1
    return (chi2 - freedom) / float((2 * freedom) ** 0.5)


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Iterator[Counter[tuple[int, ...]]]:
    yield samples(engine, offload=False)


def chain(number: int, tokens: Sequence[int], draft: Sequence[int]) -> list[Any]:
    return [Chain(number, len(tokens), list(draft), [10] * len(draft))]


DRAFTS: dict[str, Callable[[int, list[int]], list[Any]]] = {
    "often right": lambda number, tokens: chain(number, tokens, ALLOWED[:1] * 3),
    "never right": lambda number, tokens: chain(number, tokens, [4000, 4001, 4002]),
    "adversarial": lambda number, tokens: chain(number, tokens, [ALLOWED[(tokens[-1] + number) % 4], *ALLOWED[1:3]]),
}


@pytest.mark.parametrize("kind", DRAFTS)
def test_drafts_leave_the_distribution_as_it_is(engine: Engine, plain: Any, kind: str) -> None:
    engine.oracle.answer = DRAFTS[kind]
    drafted = samples(engine, offload=True)
    assert engine.hook is not None
    far = deviation(plain, drafted)
    print(
        f"{kind}: {SAMPLES} samples, {len(plain | drafted)} completions, {far:.2f} standard deviations above the mean"
    )
    assert far < 5


def test_the_comparison_finds_a_draft_that_decides(engine: Engine, plain: Any) -> None:
    """The measure itself: one completion in twenty, replaced by what was drafted, is seen."""
    wrong = plain.copy()
    for text, count in plain.items():
        wrong[text] -= count // 20
        wrong[(ALLOWED[0],) * TOKENS] += count // 20
    assert deviation(plain, wrong) > 5
