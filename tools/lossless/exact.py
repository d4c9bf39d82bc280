"""The exact distribution of answers, in plain Python, written against docs/numerics.md without any code of the core.

A fault in the core's processing therefore shows as a wrong distribution and not as two equal mistakes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from edgespec.core.protocol.messages import Sampling
from tools.lossless.scene import Scene


def sequences(scene: Scene, rule: Sampling) -> dict[tuple[int, ...], float]:
    """Every answer of `scene.length` tokens with its probability."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(scene.length):
        found = {
            (*path, token): before * p
            for path, before in found.items()
            for token, p in next_token(scene.logits(path).tolist(), rule, scene.prompt, path).items()
        }

    return found


def next_token(
    logits: Sequence[float], rule: Sampling, prompt: Sequence[int], answer: Sequence[int]
) -> dict[int, float]:
    """The tokens that may follow, with their probabilities."""
    counts = Counter(answer)
    seen = {*prompt, *answer}
    x: dict[int, float] = {}
    for token, logit in enumerate(logits):
        logit += rule.logit_bias.get(token, 0.0)
        if token in seen:
            logit = logit / rule.repetition_penalty if logit > 0 else logit * rule.repetition_penalty
        logit -= rule.frequency_penalty * counts[token] + rule.presence_penalty * min(counts[token], 1)
        x[token] = logit / rule.temperature
    if rule.top_k:
        border = sorted(x.values(), reverse=True)[: rule.top_k][-1]
        x = {token: logit for token, logit in x.items() if logit >= border}
    p = _softmax(x)
    if rule.top_p < 1:
        mass = 0.0
        border = 1.0
        for one in sorted(p.values(), reverse=True):
            if mass >= rule.top_p:
                break
            mass = mass + one
            border = one
        p = {token: one for token, one in p.items() if one >= border}
    if rule.min_p:
        best = max(p.values())
        p = {token: one for token, one in p.items() if one >= rule.min_p * best}
    total = math.fsum(p.values())
    return {token: one / total for token, one in p.items()}


def _softmax(x: dict[int, float]) -> dict[int, float]:
    best = max(x.values())
    weights = {token: math.exp(logit - best) for token, logit in x.items()}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}
