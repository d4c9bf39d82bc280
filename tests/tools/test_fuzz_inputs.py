"""What the fuzz gate feeds to decoders and machines: it finds nothing, finds what is planted, and its corpus holds."""

from __future__ import annotations

import itertools
import random
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cloud_gateway.api import tools as api_tools
from cloud_gateway.core.requests.events import TABLE, Status, Turn
from cloud_gateway.models import schema_limits
from edgespec.core.admission import Admission
from edgespec.core.drafting import algorithm2
from edgespec.core.protocol import messages
from edgespec.shared import keystore, settings
from tools.fuzz import bounds, corpus, decoders, machines, run
from tools.fuzz.corpus import Kept
from tools.fuzz.decoder import Decoder, outcome
from tools.fuzz.mutate import JSON, MAX_BYTES, MSGPACK, TOKENS, mutated

SEED = 20261121
Plant = Callable[[pytest.MonkeyPatch], None]


def piece(kind: str, count: int) -> run.Piece:
    return run.Piece(kind, SEED, 0, count, count)


def only(patch: pytest.MonkeyPatch, kind: str, name: str) -> None:
    """Every case is of this decoder or machine."""
    if kind == "decoder":
        patch.setattr(decoders, "_shares", lambda: ([name], [1.0]))
    else:
        patch.setattr(machines, "MACHINES", {name: machines.MACHINES[name]})
        patch.setattr(machines, "_SHARES", [1.0])


@pytest.mark.claim("each-decoder-gives-values-and-its-own-refusals-only")
def test_each_decoder_gives_values_and_its_own_refusals_only() -> None:
    for name, decoder in decoders.decoders().items():
        rng = random.Random(f"{SEED} {name}")
        altered = [mutated(rng, decoder.samples, decoder.codec) for _ in range(150)]
        seen = Counter(outcome(decoder, data) for data in [decoder.samples[0], *altered])
        values = sum(count for what, count in seen.items() if what.startswith("value "))
        assert values and (values < seen.total()) == bool(decoder.refuses), f"{name}: {seen}"


@pytest.mark.claim("each-machine-takes-events-in-any-order")
def test_each_machine_takes_events_in_any_order() -> None:
    for name, (machine, cost) in machines.MACHINES.items():
        seen = Counter[str]()
        for number in range(max(60 // cost, 3)):
            rng = random.Random(f"{SEED} {name} {number}")
            events = itertools.chain.from_iterable(machine(rng) for _ in itertools.repeat(None))
            seen.update(itertools.islice(events, machines.EVENTS))
        assert len(seen) > 1, f"{name}: {seen}"


@pytest.mark.claim("each-machine-takes-events-in-any-order")
@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("gateway's session", {"open", "closed", "malformed", "bad-signature", "sequence", "pong", "unexpected"}),
        ("worker's session", {"welcome", "open", "closed", "malformed", "bad-signature"}),
        ("pairing window", {"replied confirmed", "paired paired", "busy"}),
        ("peer handshake", {"Granted", "unpaired", "bad-signature"}),
        ("request", {"Verified decode", "Verified finished", "Failed queued", "FrameArrived finished", "not now"}),
        ("worker's request", {"matched", "sent", "prefix"}),
        ("inflow", {"passed", "held", "flood"}),
    ],
)
def test_a_machine_is_led_far(monkeypatch: pytest.MonkeyPatch, name: str, reached: set[str]) -> None:
    only(monkeypatch, "machine", name)
    result = run.run_piece(piece("machine", 15 if name == "pairing window" else 120))
    assert result.failure is None, result.failure[1]
    missing = {f"{name}: {what}" for what in reached} - set(result.seen)
    assert not missing, f"{missing} of {set(result.seen)}"


def narrow(module: object) -> Plant:
    """The module expects msgspec's own error only."""
    return lambda patch: patch.setattr(module, "UNDECODABLE", (msgspec.ValidationError,))


def toml_as_python_reads_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settings, "_toml", tomllib.loads)


def references_of_any_length(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schema_limits, "_resolved", lambda root, reference: int(reference.rpartition("/")[2] or 0))


def no_decoding_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(messages, "decoded", lambda decode, data, what: decode(data))


def a_request_that_cannot_end(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TABLE, (Status.DECODE, Turn.OVER), Status.DECODE)  # type: ignore[arg-type]


def connections_that_wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "_stop_waiting", lambda *_: None)


def costs_without_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(algorithm2, "millinats", lambda nats, unknown=0: round(nats * 1e6))


@pytest.mark.parametrize(
    ("plant", "kind", "name", "count"),
    [
        (narrow(messages), "decoder", "handshake", 60),
        (narrow(messages), "decoder", "pairing message", 60),
        (narrow(api_tools), "decoder", "chat body", 100),
        (narrow(keystore), "decoder", "rotations.json", 20),
        (toml_as_python_reads_it, "decoder", "--set", 20),
        (references_of_any_length, "decoder", "JSON schema", 60),
        (no_decoding_error, "machine", "gateway's session", 60),
        (a_request_that_cannot_end, "machine", "request", 60),
        (connections_that_wait_for_ever, "machine", "admission", 20),
        (costs_without_bound, "machine", "worker's request", 60),
    ],
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, kind: str, name: str, count: int
) -> None:
    decoders.decoders()  # made without the fault
    only(monkeypatch, kind, name)
    plant(monkeypatch)
    failure = run.run_piece(piece(kind, count)).failure
    assert failure is not None and failure[0].startswith(f"{SEED}:{kind}:")
    assert kind == "machine" or "input: b" in failure[1], "the input is shown"
    with pytest.raises(Exception):  # noqa: B017  whatever the fault leads to, the named case shows it again
        run.one(failure[0])


def test_time_and_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CPU_S", 0.05)
    with pytest.raises(AssertionError, match="processor time"), bounds.bounded():
        while True:
            pass
    monkeypatch.setattr(bounds, "MEMORY_MB", -1)
    with pytest.raises(AssertionError, match="memory"), bounds.bounded():
        pass


def test_mutations_are_bounded_and_leave_some_inputs_as_they_are() -> None:
    rng, samples = random.Random(SEED), [b'{"a": [1, 2, {"b": null}]}', b"[]"]
    made = [mutated(rng, samples, JSON) for _ in range(3000)]
    assert all(len(one) <= MAX_BYTES for one in made) and max(map(len, made)) > 3000
    assert 20 < sum(one in samples for one in made) < 600
    assert sum(token in one for one in made for token in TOKENS[-20:]) > 20
    packed = [mutated(rng, [MSGPACK.dump([1, "a", b"b"])], MSGPACK) for _ in range(300)]
    assert sum(one[:1] == b"\x93" for one in packed) > 100


def test_what_the_corpus_holds_still_leads_to_the_same() -> None:
    kept = corpus.read()
    for one in kept:
        assert outcome(decoders.decoders()[one.decoder], one.input) == one.outcome, f"{one.decoder}: {one.input!r}"
    shown = {(one.decoder, one.outcome.startswith("value ")) for one in kept}
    expected = {(name, True) for name in decoders.decoders()}
    expected |= {(name, False) for name, decoder in decoders.decoders().items() if decoder.refuses}
    assert shown == expected, "each decoder has inputs that it takes, and some that it refuses"
    assert any(one.failed for one in kept)


def test_the_corpus_grows_by_outcomes_and_by_what_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numbers = Decoder(int, [b"17"], ValueError)
    monkeypatch.setattr(corpus, "decoders", lambda: {"number": numbers})
    monkeypatch.setattr(corpus, "FILE", tmp_path / "corpus.jsonl")
    monkeypatch.setattr(corpus.read, "__defaults__", (tmp_path / "corpus.jsonl",))
    assert corpus.main(["--inputs", "300"]) == 0
    assert [(one.outcome, one.failed) for one in corpus.read()] == [("ValueError", ""), ("value int", "")]
    (tmp_path / "input").write_bytes(b"9" * 5000)
    assert corpus.main(["--inputs", "0", "--add", "number", str(tmp_path / "input"), "OverflowError"]) == 0
    added = corpus.read()[-1]
    assert (added.input, added.outcome, added.failed) == (b"9" * 5000, "ValueError", "OverflowError")
    assert corpus.read()[:2] == [Kept.of("number", one.input) for one in corpus.read()[:2]]
