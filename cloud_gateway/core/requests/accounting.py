"""What a request's steps mean for its usage."""

from __future__ import annotations

from cloud_gateway.core.requests.request import Usage
from cloud_gateway.core.requests.steps import HostTime, LocalWork
from cloud_gateway.core.verify.accept import Walk
from cloud_gateway.core.verify.candidates import LOCAL
from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.core.verify.guide import GRAMMAR
from edgespec.core.drafting.tree import Node


def charge(usage: Usage, step: HostTime | LocalWork) -> None:
    """Time that was spent on the request besides passes of the target."""
    if isinstance(step, HostTime):
        usage.host_s += step.seconds
    elif step.reading:
        usage.prefill_s += step.seconds
    else:
        usage.local_draft_passes += step.passes
        usage.local_s += step.seconds


def count_round(usage: Usage, flat: FlatTree, taken: Walk) -> None:
    """Credits every verified and every accepted candidate to its source."""
    usage.rounds += 1
    usage.completion_tokens += len(taken.tokens)
    for node in flat.nodes:
        source = _source(node)
        usage.drafted[source] = usage.drafted.get(source, 0) + 1
    for row in taken.rows[1:]:
        source = _source(flat.nodes[row - 1])
        usage.accepted[source] = usage.accepted.get(source, 0) + 1


def _source(node: Node) -> str:
    return node.owner if node.owner in (LOCAL, GRAMMAR) else "worker"
