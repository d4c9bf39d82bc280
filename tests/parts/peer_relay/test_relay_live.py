"""Four machines stood in by network namespaces: a worker without a way out drafts through one peer, then another.

Needs root and iproute2 (Debian: `apt-get install iproute2`). The namespaces are the test's own and go with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.parts.peer_relay.campus import PEERS, WAIT_S, WAYS, Campus, campus_on, lose_relay

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
TOKENS = 64


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campus]:
    with campus_on(tmp_path_factory.mktemp("es")) as everything:
        yield everything


def test_peers_show_who_is_there_and_what_they_do(campus: Campus) -> None:
    deadline = time.monotonic() + WAIT_S
    shown = campus.command("worker", "peers")["peers"]
    while not all(one["there"] for one in shown):  # each is asked for a second at most
        assert time.monotonic() < deadline, shown
        shown = campus.command("worker", "peers")["peers"]
    assert {one["name"] for one in shown} == set(PEERS)
    for number, one in enumerate(shown, 3):
        assert (one["trust"], one["there"], one["relays"], one["interface"]) == ("paired", True, True, f"v{number}")
        assert len(one["drafting_for"]) == 1


@pytest.mark.claim("a-relay-that-falls-silent-is-left")
@pytest.mark.parametrize("how", WAYS)
def test_a_lost_relay_is_replaced_within_the_completion(campus: Campus, how: str) -> None:
    report = lose_relay(campus, how, TOKENS)
    before, after = report["relays"]
    assert {before, after} == set(PEERS)
    assert report["equal"]
    accepted = report["usage"]["accepted"]
    assert accepted["worker"] > 0
