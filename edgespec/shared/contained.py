"""Going on after any exception: one class, so that each place that does is a `with Contained(...)`."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from edgespec.shared.log_text import kind_of_error, origin


class Contained:
    """A context that keeps the exception raised inside it, if any. Cancellation and exits pass through."""

    __slots__ = ("_arguments", "_handle", "error")

    def __init__(self, handle: Callable[..., None] | None = None, *arguments: Any) -> None:
        """`handle` is called with the arguments and the exception, after the block."""
        self._handle = handle
        self._arguments = arguments
        self.error: Exception | None = None

    def __enter__(self) -> Contained:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        if self._handle is not None:
            self._handle(*self._arguments, error)
        return True


def describe_fault(error: BaseException) -> str:
    """Type and place, as in `ValueError at edgespec/core/sampling/logits.py:130`; the text may quote a prompt."""
    return kind_of_error(error) + origin(error)
