"""`cloud-gateway models`: the verbs of `edgespec models`, and whether a target and a draft pair."""

from __future__ import annotations

from cloud_gateway.part import GatewayPart
from cloud_gateway.parts.model_files.verb import GatewayModelsVerb

PART = GatewayPart("model_files", verbs=[GatewayModelsVerb()])
