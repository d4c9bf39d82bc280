"""Known answers: target and local draft are tried in llama.cpp as a worker's draft model is."""

from __future__ import annotations

from cloud_gateway.part import GatewayPart
from edgespec.parts.known_answers import try_llama

PART = GatewayPart("known_answers", trial=try_llama)
