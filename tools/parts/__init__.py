"""What measures the parts: `tools/parts/NAME` leaves with the part. No other file of the tools names one of them."""

from __future__ import annotations

from collections.abc import Mapping

from tools.fuzz.decoder import Stored
from tools.lossless.cases import Method
from tools.parts import audit, rejection

METHODS: tuple[Method, ...] = (rejection.METHOD,)
"""Methods of verification that parts bring, for `python -m tools.lossless`."""
STORED: tuple[Mapping[str, Stored], ...] = (audit.STORED,)
"""Files that parts read, for `python -m tools.fuzz`."""
