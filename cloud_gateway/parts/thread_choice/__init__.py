"""Thread choice: target and local draft take as many threads as are fastest, as a worker's draft model does."""

from __future__ import annotations

from cloud_gateway.part import GatewayPart
from edgespec.parts.thread_choice import FASTEST

PART = GatewayPart("thread_choice", threads=FASTEST)
