"""The part's keys in both configurations, and what it finds and announces with them."""

from __future__ import annotations

import pytest

from cloud_gateway.parts.mdns import PART as GATEWAY_PART
from cloud_gateway.process import config as gateway
from edgespec.core.errors import ConfigError
from edgespec.parts.mdns import PART as WORKER_PART
from edgespec.parts.mdns.browser import Browser
from edgespec.shared.nearby import GATEWAY, Announced, Kind
from edgespec.shared.part import nearby_of
from edgespec.shared.settings import overridden, parse
from edgespec.worker import config as worker

OTHER = Kind("edgespec-other", "/other", "edgespec other")
MACHINE = Announced("gw", bytes(32), bytes(32), "127.0.0.1", 7443)


def test_a_name_is_no_network() -> None:
    with pytest.raises(ConfigError, match=r'each item a network such as "203\.0\.113\.0/24" \('):
        parse('[gateway]\nnetworks = ["lab"]', worker.schema([WORKER_PART]), "x.toml")


async def test_a_worker_that_may_not_search_still_pairs_by_a_code_alone() -> None:
    settings = worker.schema([WORKER_PART])()
    assert nearby_of([WORKER_PART], settings).gateway_finder("0" * 16) is not None
    nearby = nearby_of([WORKER_PART], overridden(settings, {"gateway.discover": "false"}))
    assert nearby.gateway_finder("0" * 16) is None
    assert nearby.finder(GATEWAY) is not None


async def test_networks_of_the_gateway_are_none_of_peers() -> None:
    settings = overridden(worker.schema([WORKER_PART])(), {"gateway.networks": '["203.0.113.0/24"]'})
    nearby = nearby_of([WORKER_PART], settings)
    found = [nearby.finder(GATEWAY), nearby.gateway_finder("0" * 16), nearby.finder(OTHER)]
    browsers = [finder for finder in found if isinstance(finder, Browser)]
    assert [list(map(str, browser._networks)) for browser in browsers] == [["203.0.113.0/24"], ["203.0.113.0/24"], []]


def test_a_gateway_that_may_not_announce_itself_does_not() -> None:
    settings = gateway.schema([GATEWAY_PART])()
    assert nearby_of([GATEWAY_PART], settings).announcer(GATEWAY, MACHINE) is not None
    nearby = nearby_of([GATEWAY_PART], overridden(settings, {"link.mdns": "false"}))
    assert nearby.announcer(GATEWAY, MACHINE) is None
