"""Messages: a closed set, validated once; nothing but the decoder's own errors comes out of any bytes."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import ranges

SESSION = bytes(range(16))
HASH = bytes(range(32))


def tree(**changes: Any) -> m.Tree:
    fields: dict[str, Any] = {
        "request": 7,
        "epoch": 1,
        "prefix_len": 5,
        "prefix_hash": HASH,
        "first": 1,
        "parents": [0, 1, 1],
        "tokens": [10, 11, 12],
        "costs": [100, 200, 300],
        "entropies": [1, 2, 3],
    }
    return m.Tree(**(fields | changes))


EXAMPLES = [
    m.Welcome("gw", 4),
    m.Open(1, 1, 3, [1, 2, 3], m.Sampling(temperature=0.7, seed=5, logit_bias={3: -100.0})),
    m.Open(1, 1, 3, [1, 2, 3], m.Sampling(), b"s" * 32),
    m.Commit(1, 1, 3, [4], HASH),
    m.Commit(1, 1, 3, [4], HASH, 130_000, 105_000, 64),
    m.Share(1, 1, 1, 2),
    m.Books(2457, 157, 194, 1111, 791),
    m.WorkerTimes(98_400, 121_000),
    m.Close(1, 1, "done"),
    m.Piece(HASH, 2**25, b"x" * m.MAX_PIECE_BYTES),
    m.Extra("n" * 64, b"x" * m.MAX_PIECE_BYTES),
    m.Fetch(65_300),
    tree(),
    m.StepTimes([1, 2, 16], [6000, 11_000, 60_000_000]),
    m.Pause("owner is back"),
    m.Resume(),
    m.Decline(1, 1, "too long"),
    m.Ping(1),
    m.Pong(1),
    m.Bye("stopping"),
]


def decode(body: Any, session: bytes = SESSION, seq: int = 1) -> Any:
    return m.decode_frame(m.encode([session, seq, [body]])).bodies[0]


@pytest.mark.parametrize("body", EXAMPLES, ids=lambda body: type(body).__name__)
def test_every_message_survives_the_wire(body: m.Message) -> None:
    frame = m.Frame(SESSION, 3, [body])
    assert m.decode_frame(m.encode(frame)) == frame


def test_the_examples_are_all_messages_there_are() -> None:
    handshake = {m.Hello, m.Challenge, m.Proof, m.RotatedProof, m.Rotation, m.Refuse}
    assert {type(body) for body in EXAMPLES} | handshake | {m.Sampling} == {
        kind for kind in m.Message.__subclasses__() if kind.__module__ == m.__name__
    }


@pytest.mark.claim("what-does-not-fit-is-refused-at-the-edge", "step-times-that-are-no-curve")
@pytest.mark.parametrize(
    "body",
    [
        ["tree", 7, 1, 5, HASH, 1, [0], [1], [1], [1], "one more"],
        ["tree", 7, 1, 5, HASH, 0, [0], [1], [1], [1]],
        ["tree", 7, 1, 5, HASH[:31], 1, [0], [1], [1], [1]],
        ["tree", 7, 1, 5, HASH, 1, [], [], [], []],
        ["tree", 7, 1, 5, HASH, 1, [0], [-1], [1], [1]],
        ["tree", 7, 1, 5, HASH, 1, [0], [2**31], [1], [1]],
        ["tree", 7, 1, 5, HASH, 1, [0], [1.5], [1], [1]],
        ["tree", 2**63, 1, 5, HASH, 1, [0], [1], [1], [1]],
        None,
        ["commit", 1, 1, 3, [], HASH],
        ["pause", "x" * 201],
        ["pause", "two\nlines"],
        ["pause", "\x1b[31mred"],
        ["pause", "left\u202eright"],
        ["open", 1, 1, 1, [0] * 8193, ["sampling"]],
        ["open", 1, 1, 1, [0], ["sampling", math.nan]],
        ["open", 1, 1, 1, [0], ["sampling", -0.5]],
        ["open", 1, 1, 1, [0], ["sampling", 0.5, 0, 1.0, 0.0, 0.0]],
        ["step-times", [], []],
        ["step-times", [1] * 9, [1] * 9],
        ["step-times", [0], [1]],
        ["step-times", [1], [0]],
        ["step-times", [1], [60_000_001]],
        ["commit", 1, 1, 3, [4], HASH, 60_000_001, 0, 0],
        ["commit", 1, 1, 3, [4], HASH, 0, -1, 0],
        ["commit", 1, 1, 3, [4], HASH, 0, 0, 65],
    ],
)
def test_what_does_not_fit_is_refused_at_the_edge(body: Any) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(body)


@pytest.mark.claim("bad-msgpack")
def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        m.decode_frame(m.encode(m.Frame(SESSION, 1, [m.Resume()])) + b"\0")


@pytest.mark.claim("no-bytes-bring-anything-but-the-decoders-errors")
@given(st.data())
def test_no_bytes_bring_anything_but_the_decoders_errors(data: st.DataObject) -> None:
    payload = bytearray(m.encode(m.Frame(SESSION, 1, [data.draw(st.sampled_from(EXAMPLES))])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        frame = m.decode_frame(bytes(payload))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    assert all(isinstance(body, m.Message) for body in frame.bodies)


@pytest.mark.claim("65-nodes")
@pytest.mark.claim("a-parent-that-is-no-earlier-node")
@pytest.mark.claim("a-token-out-of-range")
@pytest.mark.claim("duplicate-siblings")
@pytest.mark.claim("columns-of-unequal-length")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parents": list(range(65)), "tokens": [1] * 65, "costs": [1] * 65, "entropies": [1] * 65}, "shape-nodes"),
        ({"costs": [1, 2]}, "shape-columns"),
        ({"parents": [0, 1]}, "shape-columns"),
        ({"entropies": [1]}, "shape-columns"),
        ({"parents": [0, 2, 1]}, "shape-parent"),
        ({"parents": [1, 1, 1], "tokens": [1, 2, 3]}, "shape-parent"),
        ({"tokens": [10, 11, 11]}, "shape-duplicate-sibling"),
        ({"tokens": [10, 11, 100]}, "shape-vocabulary"),
        ({"costs": [0, m.MAX_COST + 1, 0]}, "shape-cost"),
        ({"entropies": [0, 0, m.max_entropy(100) + 1]}, "shape-entropy"),
    ],
)
def test_each_wrong_shape_has_its_own_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        m.check_tree_shape(tree(**changes), vocab_size=100)
    assert caught.value.reason == reason


def test_a_right_shape_passes_and_may_name_parents_of_earlier_frames() -> None:
    m.check_tree_shape(tree(first=40, parents=[0, 39, 41]), vocab_size=100)
    m.check_tree_shape(tree(costs=[m.MAX_COST] * 3, entropies=[m.max_entropy(100)] * 3), vocab_size=100)


@pytest.mark.parametrize("vocab_size", [1, 2, 100, 32_000, 2**18])
def test_an_entropy_may_be_that_of_equally_likely_tokens_and_hardly_more(vocab_size: int) -> None:
    uniform = 1000 * math.log(vocab_size)
    assert uniform + 20 < m.max_entropy(vocab_size) <= uniform + 51


def test_the_largest_cost_is_beyond_any_that_could_be_verified() -> None:
    assert 16 * 1000 * math.log(2**18) <= m.MAX_COST
    assert m.MAX_DEPTH * m.MAX_COST < 2**31, "the sum of a path stays in the range of Millinats"


def test_step_times_become_seconds_by_leaves() -> None:
    assert m.step_curve(m.StepTimes([1, 2, 16], [6000, 11_000, 1])) == ((1, 0.006), (2, 0.011), (16, 0.000001))


@pytest.mark.parametrize(
    ("leaves", "micros"),
    [([2, 4], [1, 1]), ([1, 4, 4], [1, 1, 1]), ([1, 8, 4], [1, 1, 1]), ([1, 2], [1]), ([1], [1, 1])],
)
def test_step_times_that_are_no_curve_have_their_own_reason(leaves: list[int], micros: list[int]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        m.step_curve(m.StepTimes(leaves, micros))
    assert caught.value.reason == "shape-steps"


def test_a_commit_may_leave_its_times_out() -> None:
    assert decode(["commit", 1, 1, 3, [4], HASH]) == m.Commit(1, 1, 3, [4], HASH, 0, 0, 0)


SAMPLING_FIELDS = [field.name for field in msgspec.structs.fields(m.Sampling)]


@pytest.mark.claim("a-number-out-of-range-is-refused-with-the-range")
@pytest.mark.parametrize("name", [name for name in ranges.SAMPLING if name != "logit_bias"])
def test_the_wire_takes_a_parameter_at_its_bounds_and_not_beyond(name: str) -> None:
    bounds = ranges.SAMPLING[name]
    whole = name == "top_k"
    least = math.nextafter(bounds.low, math.inf) if bounds.above else bounds.low
    for value in (least, bounds.high):
        assert getattr(decode(opening(name, value)).sampling, name) == value
    below = bounds.low if bounds.above else bounds.low - 1 if whole else math.nextafter(bounds.low, -math.inf)
    for value in (below, bounds.high + 1, math.inf, -math.inf, math.nan, 1e308):
        with pytest.raises(msgspec.MsgspecError):
            decode(opening(name, value))


def test_the_wire_takes_a_bias_at_its_bounds_and_not_beyond() -> None:
    decode(opening("logit_bias", {0: -100.0, ranges.MAX_ID: 100.0}))
    for bias in ({0: 100.5}, {0: math.nan}, {-1: 0.0}, {2**31: 0.0}, dict.fromkeys(range(1025), 0.0)):
        with pytest.raises(msgspec.MsgspecError):
            decode(opening("logit_bias", bias))


def opening(name: str, value: Any) -> list[Any]:
    """An `Open` whose sampling has this one parameter."""
    defaults = msgspec.to_builtins(m.Sampling())
    defaults[1 + SAMPLING_FIELDS.index(name)] = value
    return ["open", 1, 1, 1, [0], defaults]


@pytest.mark.parametrize(("at", "value"), [(5, 0), (5, 2**31), (6, 0), (6, 1025)])
def test_a_hello_states_sizes_that_a_model_can_have(at: int, value: int) -> None:
    hello = ["hello", m.PROTOCOL, HASH, HASH, HASH, HASH, 64, 4, "lab-7"]
    m.decode_handshake(m.encode(hello))
    hello[at + 1] = value
    with pytest.raises(msgspec.MsgspecError):
        m.decode_handshake(m.encode(hello))


@pytest.mark.claim("the-text-of-a-refusal-names-no-token")
def test_the_text_of_a_refusal_names_no_token() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        m.check_tree_shape(tree(tokens=[10, 11, 987654]), vocab_size=100)
    assert "987654" not in str(caught.value)
