"""What vLLM's log says about the board: whether it is connected and why not, and messages that were none."""

from __future__ import annotations

import logging

from edgespec_vllm.board import Board

log = logging.getLogger("vllm.edgespec")
"""Below vLLM's own logger, so that its lines are shown."""
PAUSE_S = 60.0
"""Between two lines: a link process that comes and goes fills no log. The latest state is logged after the pause."""


class Report:
    """Looks at a board after each step, and logs what has changed."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._logged: tuple[bool, str, int] | None = None
        self._at = 0.0

    def look(self, now: float) -> None:
        """Logs the state if it differs from what was logged last. `now`: seconds of a monotonic clock."""
        line = self._board.line
        state = (line.up, "" if line.up else line.why, self._board.malformed)
        if state == self._logged or (self._logged is not None and now < self._at + PAUSE_S):
            return

        self._logged = state
        self._at = now

        malformed = f"; {state[2]} of its messages were malformed" if state[2] else ""
        if line.up:
            log.info("edgespec: connected to the link process at %s (connection %d)%s",
                     line.path, line.connected, malformed)  # fmt: skip
            return

        log.warning(
            "edgespec: not connected to the link process, so vLLM runs without drafts from workers: %s%s",
            line.why or line.path, malformed,
        )  # fmt: skip
