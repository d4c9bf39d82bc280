"""What measures the parts: `tools/parts/NAME` leaves with the part. No other file of the tools names one of them."""

from __future__ import annotations

from tools.lossless.cases import Method
from tools.parts import rejection

METHODS: tuple[Method, ...] = (rejection.METHOD,)
"""Methods of verification that parts bring, for `python -m tools.lossless`."""
