"""What a part may observe of the API: responses and ended completions, without their content."""

from __future__ import annotations

from cloud_gateway.core.requests.request import Usage


class Observer:
    """Called by the API on the event loop. Each method does nothing until a part overrides it, and may not block."""

    def responded(self, endpoint: str, status: int) -> None:
        """A request has its response. `endpoint`: a path of the route table, or `other`."""

    def completed(self, finish: str, usage: Usage | None, first_token_s: float | None) -> None:
        """A completion has ended.

        Args:
            finish: As in the API, or `cancelled` or `error`.
            usage: None if the engine did not begin it.
            first_token_s: Seconds from the request to the first token; None without one.
        """
