"""Figures of the gateway for Prometheus, at a port of their own that only this machine reaches (`[metrics]`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud_gateway.part import Foundation, GatewayPart, PortSetting, Running
from edgespec.shared.fields import Port
from edgespec.shared.settings import Removed, Section

if TYPE_CHECKING:
    from cloud_gateway.api.listener import OwnPort
    from cloud_gateway.api.observer import Observer
    from cloud_gateway.part import Operating
    from cloud_gateway.parts.prometheus.figures import Metrics

NAME = "metrics"
"""The name of the port, as of its table."""
PATH = "/metrics"
HOST = "127.0.0.1"
"""Figures about other people's requests do not leave this machine."""
REMOVED = {
    "metrics.host": Removed("the figures are served at 127.0.0.1.", ("127.0.0.1",)),
    "metrics.hosts": Removed("let the proxy before the metrics set `Host` to 127.0.0.1.", ([],)),
}


class MetricsSection(Section, frozen=True):
    """[metrics]: the port of the figures."""

    port: Port = 9464


class Exporting(Running):
    """Counts what the gateway reports, and serves the counts."""

    def __init__(self, metrics: Metrics, port: int) -> None:
        self.metrics = metrics
        self._port = port

    def ports(self) -> Sequence[OwnPort]:
        from cloud_gateway.api.listener import OwnPort
        from cloud_gateway.parts.prometheus.figures import BOUNDS, metrics_app

        return [OwnPort(NAME, metrics_app(self.metrics), HOST, self._port, BOUNDS, PATH)]

    def observer(self) -> Observer:
        return self.metrics

    def frame_refused(self, reason: str) -> None:
        self.metrics.rejected(reason)

    def operates(self, gateway: Operating) -> None:
        from cloud_gateway.parts.prometheus.figures import Totals

        self.metrics.registry.register(Totals(gateway))


def start_exporting(gateway: Foundation) -> Running:
    """Always on, since counting costs little."""
    from cloud_gateway.parts.prometheus.figures import Metrics

    return Exporting(Metrics(), gateway.settings.of(MetricsSection).port)


def report(status: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """The line of `cloud-gateway status`."""
    if NAME in status:
        yield NAME, f"{status[NAME]}{PATH}"


PART = GatewayPart(
    "prometheus",
    {NAME: MetricsSection},
    removed=REMOVED,
    example=Path(__file__).with_name("gateway.toml"),
    start=start_exporting,
    ports=(PortSetting(NAME, "port of the metrics; 0 takes a free one"),),
    report=report,
)
