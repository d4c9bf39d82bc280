"""A trace: the log of what one request's state machine was given and what its policy decided (docs/traces.md).

    file    =  MAGIC ‖ public key(32) ‖ signature(64) ‖ zlib(msgpack(Trace))
    signed  =  b"edgespec/1 trace\\0" + public key + everything after the signature

An event is an input of `core/requests/events.py`, something new that the policy could see, or a decision, in the order
in which they happened: the same machine, given the same again, decides the same. Nodes are named by their ids. Times
are seconds of the gateway's monotonic clock, kept to the last bit, because sums of them are compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cloud_gateway.core.policies.settings import PolicySettings
from edgespec.core.errors import UNDECODABLE, RemoteProtocolError, TraceError
from edgespec.core.protocol.messages import Text
from edgespec.core.protocol.signing import SIGNATURE_BYTES, SigningKey, check_public_key, verify

FAMILY = b"edgespec-trace/"
MAGIC = FAMILY + b"2\n"
KIND = "trace"
KEY_BYTES = 32
MAX_BYTES = 64 * 1024 * 1024
"""Of a trace's content; a longer one is not unpacked."""
MAX_PROMPT = 1 << 20
"""Tokens, as many as a slot of the target can have (`target.context`)."""


class Event(Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """Base of everything in the log."""


# --- what the policy decided (core/policies/actions.py) ----------------------------------------------------------


class Verify(Event, tag="verify", frozen=True):
    """A pass of the target over these candidates; with none a plain decoding step."""

    nodes: list[int]


class Draft(Event, tag="draft", frozen=True):
    """A pass of the local draft over these leaves, up to `width` children each."""

    leaves: list[int]
    width: int


class CatchUp(Event, tag="catch-up", frozen=True):
    """A batch of the local draft's catch-up; `tokens`: most to read, 0 for a full batch."""

    tokens: int = 0


class Wait(Event, tag="wait", frozen=True):
    """Nothing before `until`, unless a frame arrives."""

    until: float


AnyAct = Verify | Draft | CatchUp | Wait


class Decided(Event, tag="decided", frozen=True):
    """The policy was asked. `size`: candidates in the tree, which shows a tree that is rebuilt otherwise."""

    now: float
    size: int
    act: AnyAct


# --- what happened (core/requests/events.py) ----------------------------------------------------------------------


What = Literal[
    "Admitted", "Prefilled", "Assigned", "WorkerGone", "Declined", "Withdrawn", "PassFailed", "SpeculationFailed",
    "Cancelled", "Ended", "Stopped", "Preempted",
]  # fmt: skip


class Step(Event, tag="step", frozen=True):
    """An input that needs no more than its name and one value."""

    now: float
    what: What
    value: int
    """Tokens reused or read; a worker's index in the header's `workers`; 1 for a failed pass of its own; else 0."""


FIRST = -1


class Frame(Event, tag="frame", frozen=True):
    """An assigned worker sent a tree; `on_path`: its prefix hash was that of a committed prefix. Costs in millinats.

    Frames that belong to another worker or epoch are not in a trace: the machine takes nothing from them.
    """

    now: float
    prefix_len: int
    on_path: bool
    first: int
    parents: list[int]
    tokens: list[int]
    costs: list[int]
    entropies: list[int]
    taken: Text
    """What became of it: `used`, `stale` or `rejected`."""
    worker: int = FIRST
    """Its index in the header's `workers`; `FIRST`: the request had one worker only."""


class Drafted(Event, tag="drafted", frozen=True):
    """The local draft has made its proposals below these leaves: tokens, their costs, the entropy (nats)."""

    now: float
    leaves: list[int]
    proposals: list[tuple[list[int], list[float], float]]


class Guided(Event, tag="guided", frozen=True):
    """The constraint took these candidates out of the next pass, and added these tokens to its best path."""

    left_out: list[int]
    forced: list[int]


class Suggested(Event, tag="suggested", frozen=True):
    """A source without a draft model put these candidates into the tree: indices of their parents in this list (-1: the
    last committed token), tokens, and the probability of each given its parent."""

    source: Text
    parents: list[int]
    tokens: list[int]
    chances: list[float]


class Verified(Event, tag="verified", frozen=True):
    """A pass over what was decided on last: the tokens that the target chose, the entropies (nats) of its choices."""

    now: float
    tokens: list[int]
    entropies: list[float]
    rows: list[int]
    """Of the verified tree, that were accepted, row 0 first."""
    forced: list[int]
    """Tokens that the constraint then proposed."""


# --- what the policy could see besides the tree ------------------------------------------------------------------


class PassCosts(Event, tag="pass-costs", frozen=True):
    """Points of the target's cost curve that are new: rows -> seconds. The first one is the whole curve."""

    points: dict[int, float]


class Costs(Event, tag="costs", frozen=True):
    """Fields of `actions.Costs` that have changed; at first each has its default."""

    changed: dict[str, Any]


class Link(Event, tag="link", frozen=True):
    """Fields of `actions.LinkView` that have changed, all of them for a new link; None: no worker drafts from here."""

    changed: dict[str, Any] | None


Input = Step | Frame | Drafted | Verified
Seen = PassCosts | Costs | Link
AnyEvent = Decided | Guided | Suggested | Input | Seen


class Header(Struct, forbid_unknown_fields=True, frozen=True):
    """What is known of the request as a whole. Texts are one line: anybody can sign a trace, and `replay` prints it."""

    edgespec: Text
    """Version that made the trace."""
    made_at: int
    """Unix seconds when the request came."""
    request: int
    settings: PolicySettings
    prompt_len: Annotated[int, Meta(ge=0, le=MAX_PROMPT)]
    max_tokens: int
    context: int
    """Most tokens that a slot of the target can hold."""
    offload: bool
    """Whether workers were allowed to draft for it."""
    salted: bool
    """Token ids are replaced by numbers in the order of their first appearance."""
    eos: list[int]
    """Tokens that end the completion, of those that appear; none where they were to be ignored."""
    workers: list[Text]
    """Key ids of the workers that were assigned."""
    finish: Text
    complete: bool
    """False where the trace reached its limit, so that the end of the completion is missing."""
    policy_state: dict[str, Any] | None = None
    """What the policy carried over from earlier completions; None: nothing."""


class Trace(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One request."""

    header: Header
    events: list[AnyEvent]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Trace).decode


def seal(trace: Trace, key: SigningKey) -> bytes:
    """The trace as a signed file."""
    body = zlib.compress(_encode(trace), 9)
    return b"".join((MAGIC, key.public, key.sign(KIND, key.public + body), body))


def unseal(data: bytes) -> tuple[Trace, bytes]:
    """A file's trace, and the public key that signed it. Raises TraceError for anything but what `seal` made."""
    start = len(MAGIC) + KEY_BYTES + SIGNATURE_BYTES
    if data.startswith(FAMILY) and not data.startswith(MAGIC):
        name = MAGIC.decode().strip()
        raise TraceError(f"it is not of the format `{name}`: another version of edgespec made it, or it was altered.")
    if not data.startswith(MAGIC) or len(data) <= start:
        raise TraceError("it is not an edgespec trace, or its header is corrupt.")
    public, body = data[len(MAGIC) : len(MAGIC) + KEY_BYTES], data[start:]
    try:
        check_public_key(public)
        verify(public, KIND, public + body, data[len(MAGIC) + KEY_BYTES : start])
    except RemoteProtocolError:
        raise TraceError("it was altered after the gateway signed it; its signature does not verify.") from None
    try:
        return _decode(_unpack(body)), public
    except (zlib.error, *UNDECODABLE) as error:
        raise TraceError(f"its content cannot be read ({error}); another version of edgespec made it.") from None


def _unpack(body: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(body, MAX_BYTES)
    if unpacker.unconsumed_tail:
        raise zlib.error(f"more than {MAX_BYTES} bytes")
    return content


def salted(events: Iterable[AnyEvent], numbers: dict[int, int]) -> list[AnyEvent]:
    """The events with every token id replaced by the number of its first appearance, which `numbers` keeps.

    Equal tokens stay equal, so that trees and decisions do too. There is no key that could undo it.
    """

    def number(tokens: Sequence[int]) -> list[int]:
        return [numbers.setdefault(token, len(numbers) + 1) for token in tokens]

    return [_renamed(event, number) for event in events]


def _renamed(event: AnyEvent, number: Callable[[Sequence[int]], list[int]]) -> AnyEvent:
    replace = msgspec.structs.replace
    match event:
        case Frame():
            return replace(event, tokens=number(event.tokens))
        case Drafted():
            return replace(event, proposals=[(number(tokens), *rest) for tokens, *rest in event.proposals])
        case Verified():
            return replace(event, tokens=number(event.tokens), forced=number(event.forced))
        case Guided():
            return replace(event, forced=number(event.forced))
        case Suggested():
            return replace(event, tokens=number(event.tokens))
    return event


def emitted(events: Iterable[AnyEvent]) -> int:
    """Tokens of the completion that a trace holds."""
    return sum(len(event.tokens) for event in events if isinstance(event, Verified))
