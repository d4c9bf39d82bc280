"""OpenTelemetry: a span for each completion, sent to the collector that the environment names (`spans`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloud_gateway.part import Foundation, GatewayPart, Running, Serving

if TYPE_CHECKING:
    from cloud_gateway.engine.exchange import Recording


class Exporter(Running):
    """Sends spans if the environment names a collector."""

    def recording(self, serving: Serving) -> Recording | None:
        """What makes a span of each request."""
        from cloud_gateway.parts.opentelemetry import spans

        provider = spans.provider()
        if provider is None:
            return None
        return spans.Spans(provider, serving.model.id)


def start_exporter(gateway: Foundation) -> Running:
    """The exporter; the library reads its settings from the environment."""
    return Exporter()


PART = GatewayPart("opentelemetry", start=start_exporter)
