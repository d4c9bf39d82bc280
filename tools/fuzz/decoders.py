"""Every decoder of bytes from outside, and one case: a hundred inputs for one of them."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Mapping

from tools import parts
from tools.fuzz import stored, texts, wire
from tools.fuzz.decoder import Decoder, mutated, outcome

INPUTS = 100
"""Of one case; of a decoder that takes longer as many cases as it needs to have its share."""


@functools.cache
def decoders() -> Mapping[str, Decoder]:
    """By name, made once in a process. The first sample of each one is a value, and what it needs is then loaded."""
    found = wire.table() | stored.table() | texts.table()
    for table in parts.DECODERS:
        found.update(table)
    for name, decoder in found.items():
        seen = outcome(decoder, decoder.samples[0])
        assert seen.startswith("value "), f"{name}: {seen} for a valid input"
    return found


@functools.cache
def _shares() -> tuple[list[str], list[float]]:
    return list(decoders()), list(itertools.accumulate(1 / one.cost for one in decoders().values()))


def case(seed: str) -> Counter[str]:
    """What became of each input of one decoder. Raises whatever a decoder lets through."""
    rng, (names, shares) = random.Random(seed), _shares()
    (name,) = rng.choices(names, cum_weights=shares)
    decoder = decoders()[name]
    samples = decoder.samples
    codec = decoder.codec
    seen = Counter(outcome(decoder, mutated(rng, samples, codec)) for _ in range(INPUTS))
    return Counter({f"{name}: {what}": count for what, count in seen.items()})
