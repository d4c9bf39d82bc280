"""Prompts for `tools.bench sources`, written for it: chat; editing and extraction, where much is copied; code."""

from __future__ import annotations

_LETTER = """Dear Ms Novak,
thank you for your order of 14 oak shelves and 3 birch tables. The shelves leave our workshop on Tuesday and arrive on
Thursday morning between eight and ten. The tables need another week, since the varnish has to dry. Our driver calls you
half an hour before he arrives. Please keep the yard in front of the gate free, so that the truck can turn.
With kind regards,
Pavel Horak, Horak Joinery, Brno"""

_TABLE = """name, town, year, boats
Aino, Turku, 1988, 3
Bert, Ghent, 1991, 12
Carla, Porto, 1979, 7
Dimitri, Volos, 2001, 1
Elif, Izmir, 1995, 5
Fergus, Cork, 1983, 9"""

_CODE = """def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    centre = mean(values)
    total = 0.0
    for value in values:
        total += (value - centre) ** 2
    return total / len(values)"""

TEXTS: dict[str, tuple[str, ...]] = {
    "chat": (
        "Explain in a few sentences why the sky is blue during the day and red in the evening.",
        "Give me three ideas for a rainy Sunday with two children, with one sentence about each.",
        "What is the difference between a lake and a reservoir?",
    ),
    "copy": (
        f"Copy this letter word for word, but write Wednesday instead of Tuesday:\n\n{_LETTER}",
        f"Repeat this table exactly as it is, with all of its lines:\n\n{_TABLE}",
        f"Quote the sentences of this letter one after another, each on a line of its own:\n\n{_LETTER}",
    ),
    "code": (
        f"Repeat this Python code with `values` renamed to `numbers`:\n\n```python\n{_CODE}\n```",
        f"Write this Python code again with a docstring in each function:\n\n```python\n{_CODE}\n```",
        "Write a Python class Stack with the methods push, pop, peek and is_empty.",
    ),
}
"""Kind -> prompts."""
