"""Checks of command lines: a mistake is found before minutes of work, and argparse says it in one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a number within bounds, both included."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(low) - 1
        if not low <= value <= high:  # NaN too
            raise argparse.ArgumentTypeError(f"{text} is no {kind.__name__} from {low:g} to {high:g}")

        return value

    return parse


def known(names: Collection[str], what: str) -> Callable[[str], str]:
    """An argparse type: one of these names of `what`."""

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"no {what} is called {text}; there are {', '.join(names)}")
        return text

    return parse


def several(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """An argparse type: a list with commas, each value once, in order."""
    return lambda text: tuple(dict.fromkeys(kind(part) for part in text.split(",") if part))


def output(text: str) -> Path:
    """An argparse type: a file that can be written into a folder that is there."""
    path = Path(text)
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder, or lies in none; name another file")
    return path
