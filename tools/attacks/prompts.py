"""Prompts that are never repeated in a run, so that no prefix cache helps one phase more than another."""

from __future__ import annotations

import random

WORDS = (
    "harbour winter ladder engine market violin paper orchard signal copper meadow lantern river glass carpenter "
    "station garden thunder pocket journey bridge pepper whistle anchor mirror candle feather mountain"
).split()


def prompt(rng: random.Random, number: int, words: int) -> str:
    """A request for a long text about random words; `number` makes it unique."""
    topics = " ".join(rng.choice(WORDS) for _ in range(words))
    return f"Story {number}. Write a long story, without an end, in which these words occur: {topics}."
