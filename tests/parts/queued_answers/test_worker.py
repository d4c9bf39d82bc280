"""The worker's side of an answer that is written in the queue."""

from __future__ import annotations

import math
from pathlib import Path

from cloud_gateway.parts.queued_answers.written import WrittenAnswer
from edgespec.core.protocol.messages import Sampling
from tests.edgespec.worker.test_daemon_time import PROMPT, by_hand, step


def test_it_writes_an_answer_for_the_queue_and_counts_none_of_it(model: Path) -> None:
    daemon, sent = by_hand(model)
    answer = WrittenAnswer(1, PROMPT, 40, frozenset())
    for body in answer.open(Sampling(), b""):
        daemon.take(body)
    while not answer.done:
        step(daemon)
        daemon._send_due(math.inf)
        daemon.writable()
        while sent:
            answer.merge(sent.pop(), "w")
        if (commit := answer.advance()) is not None:
            daemon.take(commit)
    daemon.take(answer.close("written"))
    daemon._take_in()
    assert len(answer.tokens) == 40
    assert daemon.stats.committed == 0 and daemon.open_requests == 0
    daemon.drafter.shutdown()
