"""The gateway as a service of systemd: its unit, with the verbs of the worker's part of the same name."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart, GatewayVerb
from cloud_gateway.process.config import given
from edgespec.parts.system_service.verbs import Configured, ServiceVerbs

if TYPE_CHECKING:
    from edgespec.parts.system_service.unit import Unit


def gateway_unit() -> Unit:
    """The service that `cloud-gateway install-service` installs."""
    from edgespec.parts.system_service.unit import Unit

    return Unit("gateway", Path(__file__).with_name("cloud-gateway.service"), "cloud-gateway serve")


def _configured(args: Namespace) -> Configured:
    settings = given(args)
    return Configured([settings.target.model, settings.local_draft.model], settings.daemon.state_dir)


PART = GatewayPart(
    "system_service", verbs=[ServiceVerbs("gateway", GatewayVerb.configuration, gateway_unit, _configured)]
)
