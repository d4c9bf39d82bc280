"""Whatever may happen to a request, in any order: its trace, played again, decides and sends the same."""

from __future__ import annotations

import pytest
from hypothesis import settings

from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.parts.request_traces.format import seal, unseal
from cloud_gateway.parts.request_traces.input_log import InputLog
from cloud_gateway.parts.request_traces.play import Player
from tests.parts.request_traces.traced import KEY
from tests.support.walks import NAMES, Walk, walk_long


class TracedWalk(Walk):
    """A walk that is recorded, and played again at its end."""

    def listen(self, generation: Generation) -> InputLog:
        self.log = InputLog(generation, PolicyStart(self.settings, self.curve), 0, 1 << 20)
        return self.log

    def teardown(self) -> None:
        """The trace of the walk, as a file would hold it, leads the machine the same way."""
        finish = self.finished[0].finish if self.finished else "open"
        recorded, _ = unseal(seal(self.log.as_trace("0", finish), KEY))
        player = Player(recorded, POLICIES)
        moments = list(player.play())
        assert all(moment.same for moment in moments)
        again = [type(output) for moment in moments for output in moment.effects]
        assert [kind for kind in again if kind is not events.FrameTaken] == self.outputs
        machine = player.generation
        assert machine.status is self.status and len(machine.tree.tree) == len(self.generation.tree.tree)
        replayed = machine.usage
        before = self.generation.usage
        assert (replayed.drafted, replayed.accepted) == (before.drafted, before.accepted)
        assert replayed.by_worker == before.by_worker
        assert (replayed.rounds, replayed.completion_tokens) == (before.rounds, before.completion_tokens)


TestTracedWalk = TracedWalk.TestCase
TestTracedWalk.settings = settings(max_examples=40, stateful_step_count=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("seed", range(2 * len(NAMES)))
def test_long_walks_of_every_policy_replay_too(seed: int) -> None:
    walk_long(TracedWalk(), seed)
