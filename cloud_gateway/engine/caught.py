"""Where the gateway goes on after any exception: one class, so that each such place is a `with Caught()`."""

from __future__ import annotations

from types import TracebackType

from edgespec.shared.log_text import kind_of, origin


class Caught:
    """A context that keeps the exception raised inside it, if any. Cancellation and exits pass through."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        return True


def describe_fault(error: BaseException) -> str:
    """Type and place, as in `ValueError at edgespec/core/sampling/logits.py:130`; the text may quote a prompt."""
    return kind_of(error) + origin(error)
