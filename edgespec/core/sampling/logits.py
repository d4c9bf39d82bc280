"""From raw logits to the distribution that a request asked for: one rule for target and draft (docs/numerics.md).

The order, which is that of transformers' `generate`:

    mask of allowed tokens -> logit bias -> repetition, frequency, presence penalties   (in the model's own units)
    -> temperature -> top-k -> top-p -> min-p                                           (each on what the former left)

vLLM agrees up to min-p, which it applies before top-k and top-p; the two differ only for requests that set several of
these. Bias comes before the penalties in both. The penalties come before the temperature, so that they mean the same at
every temperature. Filters treat equal logits alike: a token stays or goes with all its equals, whatever the order of
sorting, so top-k may leave more than k.

The noise and the greedy argmax act on what this leaves; both sides evaluate it in float64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.gumbel import BLOCK, every_token

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]
Mask = NDArray[np.bool_]

GREEDY_BELOW = 1e-5
"""A lower temperature means greedy: dividing by it would only overflow."""
LARGEST = float(np.finfo(np.float32).max)
"""What an infinite logit counts as: bias, penalties and temperature keep it finite in float64."""
_CHUNK = 64


class History:
    """Token counts of prompt and completion for the penalties; grows with the completion, read at every tree node."""

    def __init__(self, prompt: Iterable[int] = (), answer: Iterable[int] = ()) -> None:
        self._counts: dict[int, int] = dict.fromkeys(prompt, 0)
        self._arrays: tuple[Tokens, Floats] | None = None
        self.extend(answer)

    def extend(self, tokens: Iterable[int], *, answer: bool = True) -> None:
        """Counts further tokens of the completion, or of a prompt that arrives in parts."""
        for token in tokens:
            self._counts[token] = self._counts.get(token, 0) + answer
        self._arrays = None

    def committed(self) -> tuple[Tokens, Floats]:
        """The distinct tokens of prompt and completion, and their counts in the completion; cached until it grows."""
        if self._arrays is None:
            self._arrays = _columns(self._counts)
        return self._arrays

    def along(self, path: Sequence[int]) -> tuple[Tokens, Floats]:
        """The distinct tokens of a path below the committed ones, with their counts in completion and path together."""
        known = self._counts
        return _columns({token: known.get(token, 0) + count for token, count in Counter(path).items()})


@dataclass(frozen=True, slots=True)
class Candidates:
    """A processed distribution: its tokens, ascending, and their logits in nats, which need not be normalised.

    `tokens` is None if no filter ran: then `logits` has the whole vocabulary, with -inf for removed tokens.
    """

    tokens: Tokens | None
    logits: Floats

    @property
    def numbers(self) -> Tokens:
        """The tokens, also if no filter ran."""
        if self.tokens is None:
            return every_token(len(self.logits))
        return self.tokens

    def dense(self, vocab_size: int) -> Floats:
        """The logits of the whole vocabulary, -inf for removed tokens; shape [vocab_size]."""
        if self.tokens is None:
            return self.logits

        result = np.full(vocab_size, -np.inf)
        result[self.tokens] = self.logits
        return result

    def entropy(self) -> float:
        """Nats."""
        return entropy(self.logits)


class Processor:
    """One request's sampling parameters, prepared once and applied to many rows of logits."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.greedy = sampling.temperature < GREEDY_BELOW
        self.has_penalties = (
            sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        )
        self.keeps_argmax = not self.has_penalties and not sampling.logit_bias
        """Whether the largest raw logit is also the largest processed one: then greedy needs no logits."""
        self._bias_tokens = np.fromiter(sampling.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float64)

    def candidates(
        self,
        logits: NDArray[np.floating],
        history: History | None = None,
        path: Sequence[int] = (),
        allowed: Mask | None = None,
    ) -> Candidates:
        """The distribution after one row's raw `logits`, shape [vocab_size], which stay as they are.

        `history` is read only when a penalty is set; `path` holds the tokens between it and this row. `allowed` is
        a mask over the vocabulary (a grammar's). Greedy leaves one token: the lowest of the largest.

        Infinite logits count as the largest and smallest float32 number, what is not a number as the smallest: a
        model with a few such logits still works. Raises ValueError if all tokens are removed, or no logit is a
        number.
        """
        x = self.adjusted(logits, history, path, allowed)
        best = int(np.argmax(x))
        if not math.isfinite(x[best]):
            x = self.adjusted(_clipped(logits), history, path, allowed)
            best = int(np.argmax(x))
            if not math.isfinite(x[best]):
                raise ValueError("no token can be chosen: all are removed")

        if self.greedy:
            return Candidates(np.array([best]), x[best : best + 1])

        x /= self.sampling.temperature
        return _filtered(x, self.sampling)

    def adjusted(
        self,
        logits: NDArray[np.floating],
        history: History | None = None,
        path: Sequence[int] = (),
        allowed: Mask | None = None,
    ) -> Floats:
        """A float64 copy after mask, bias and penalties: what comes before the temperature."""
        x = logits.astype(np.float64)
        if allowed is not None:
            x[~allowed] = -np.inf
        if len(self._bias):
            inside = self._bias_tokens < len(x)
            x[self._bias_tokens[inside]] += self._bias[inside]
        if self.has_penalties and history is not None:
            self._penalise(x, history, path)
        return x

    def _penalise(self, x: Floats, history: History, path: Sequence[int]) -> None:
        tokens, counts = history.committed()
        path_tokens, path_counts = history.along(path)

        # The path's tokens start from the unpenalised logits and get their whole count in one step: the same bits
        # come out whether a token is still on a path or committed already.
        fresh = x[path_tokens]
        x[tokens] = self._penalised(x[tokens], counts)
        x[path_tokens] = self._penalised(fresh, path_counts)

    def _penalised(self, x: Floats, counts: Floats) -> Floats:
        rule = self.sampling
        if rule.repetition_penalty != 1:
            x = np.where(x > 0, x / rule.repetition_penalty, x * rule.repetition_penalty)
        return x - (rule.frequency_penalty * counts + rule.presence_penalty * (counts > 0))


def finite(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    """`logits` as they are if the largest is finite; else a copy of finite numbers (see `Processor.candidates`).

    Raises ValueError if none of them is a number.
    """
    if math.isfinite(logits.max()):
        return logits
    return _clipped(logits)


def _clipped(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    if np.isnan(logits).all():
        raise ValueError("no token can be chosen: no logit is a number")
    clipped: NDArray[np.floating] = np.nan_to_num(logits, nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)
    return clipped


def entropy(logits: Floats) -> float:
    """Entropy in nats of softmax(logits); -inf is probability 0."""
    best = logits.max()
    total = 0.0
    moment = 0.0
    for start in range(0, len(logits), BLOCK):
        # Beyond -800 a weight is 0 in float64 anyway, and 0 times -inf is not a number.
        shifted = np.maximum(logits[start : start + BLOCK] - best, -800.0)
        weights = np.exp(shifted)
        total += float(weights.sum())
        shifted *= weights  # no dot product: BLAS would wake its threads, which wait for each other on a busy machine
        moment += float(shifted.sum())

    return max(math.log(total) - moment / total, 0.0)


def _filtered(x: Floats, rule: Sampling) -> Candidates:
    tokens: Tokens | None = None
    if 0 < rule.top_k < len(x):
        tokens = np.flatnonzero(x >= kth_largest(x, rule.top_k))
        x = x[tokens]
    if rule.top_p < 1:
        kept = _nucleus(x, rule.top_p)
        tokens = _picked(tokens, kept)
        x = x[kept]
    if rule.min_p > 0:
        kept = np.flatnonzero(x >= x.max() + math.log(min(rule.min_p, 1.0)))
        tokens = _picked(tokens, kept)
        x = x[kept]

    return Candidates(tokens, x)


def _picked(tokens: Tokens | None, kept: Tokens) -> Tokens:
    """The tokens at these places; `tokens`: None for the whole vocabulary."""
    if tokens is None:
        return kept
    return tokens[kept]


def kth_largest(x: Floats, k: int) -> float:
    """The k-th largest value (1 <= k <= n), equal ones counted as often as they occur. Quick for a small k."""
    chunks = len(x) // _CHUNK
    if k <= chunks:
        # The k-th largest of the chunks' maxima is a lower bound that leaves few values to look at.
        maxima = x[: chunks * _CHUNK].reshape(chunks, _CHUNK).max(axis=1)
        x = x[x >= np.partition(maxima, chunks - k)[chunks - k]]
    return float(np.partition(x, len(x) - k)[len(x) - k])


def _nucleus(x: Floats, top_p: float) -> Tokens:
    """Indices of the tokens for which all more probable ones together have less than `top_p`; at least the best."""
    weights = x - x.max()
    np.exp(weights, out=weights)
    total = float(weights.sum())
    goal = top_p * total

    # All tokens below this together have less than 1 - top_p, so none of them can stay, and need not be sorted.
    floor = min((total - goal) / len(x), 1.0)
    descending = np.sort(weights[weights >= floor])[::-1]
    before = np.cumsum(descending) - descending
    kept = max(int(np.searchsorted(before, goal)), 1)
    return np.flatnonzero(weights >= descending[kept - 1])


def _columns(counts: dict[int, int]) -> tuple[Tokens, Floats]:
    n = len(counts)
    return np.fromiter(counts.keys(), np.int64, n), np.fromiter(counts.values(), np.float64, n)
