"""What the fuzz gate feeds to decoders: it finds nothing, finds what is planted, and its corpus holds."""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from cloud_gateway.api import schema as api_schema
from edgespec.core.protocol import messages
from edgespec.shared import keystore, settings
from tests.support.served import needs
from tools.fuzz import corpus, decoders, run
from tools.fuzz.decoder import JSON, MAX_BYTES, MSGPACK, TOKENS, mutated, outcome

pytestmark = needs("logprobs")
SEED = 20261121
Plant = Callable[[pytest.MonkeyPatch], None]


def piece(kind: str, count: int) -> run.Piece:
    return run.Piece(kind, SEED, 0, count, count)


@pytest.mark.claim("each-decoder-gives-values-and-its-own-refusals-only")
def test_each_decoder_gives_values_and_its_own_refusals_only() -> None:
    for name, decoder in decoders.decoders().items():
        rng = random.Random(f"{SEED} {name}")
        altered = [mutated(rng, decoder.samples, decoder.codec) for _ in range(60)]
        seen = Counter(outcome(decoder, data) for data in [decoder.samples[0], *altered])
        values = sum(count for what, count in seen.items() if what.startswith("value "))
        assert values and (values < seen.total()) == bool(decoder.refuses), f"{name}: {seen}"


def narrow(module: object) -> Plant:
    """The module expects msgspec's own error only."""
    return lambda patch: patch.setattr(module, "UNDECODABLE", (msgspec.ValidationError,))


def toml_as_python_reads_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settings, "_toml", tomllib.loads)


@pytest.mark.parametrize(
    ("plant", "name", "count"),
    [
        (narrow(messages), "handshake", 60),
        (narrow(messages), "pairing message", 60),
        (narrow(api_schema), "chat body", 400),
        (narrow(keystore), "rotations.json", 20),
        (toml_as_python_reads_it, "--set", 20),
    ],
)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, name: str, count: int) -> None:
    decoders.decoders()  # made without the fault
    monkeypatch.setattr(decoders, "_shares", lambda: ([name], [1.0]))
    plant(monkeypatch)
    failure = run.run_piece(piece("decoder", count)).failure
    assert failure is not None and failure[0].startswith(f"{SEED}:decoder:")
    assert "input: b" in failure[1], "the input is shown"
    with pytest.raises(Exception):  # noqa: B017  whatever the fault leads to, the named case shows it again
        run.one(failure[0])


def test_time_and_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CPU_S", 0.05)
    with pytest.raises(AssertionError, match="processor time"), run.bounded():
        while True:
            pass
    monkeypatch.setattr(run, "MEMORY_MB", -1)
    with pytest.raises(AssertionError, match="memory"), run.bounded():
        pass


def test_mutations_are_bounded_and_leave_some_inputs_as_they_are() -> None:
    rng = random.Random(SEED)
    samples = [b'{"a": [1, 2, {"b": null}]}', b"[]"]
    made = [mutated(rng, samples, JSON) for _ in range(3000)]
    assert all(len(one) <= MAX_BYTES for one in made) and max(map(len, made)) > 3000
    assert 20 < sum(one in samples for one in made) < 600
    assert sum(token in one for one in made for token in TOKENS[-20:]) > 20
    packed = [mutated(rng, [MSGPACK.dump([1, "a", b"b"])], MSGPACK) for _ in range(300)]
    assert sum(one[:1] == b"\x93" for one in packed) > 100


def test_what_the_corpus_holds_still_leads_to_the_same() -> None:
    # The corpus has inputs of parts, too; those of a part that was removed have no decoder.
    kept = [one for one in corpus.read() if one.decoder in decoders.decoders()]
    for one in kept:
        assert outcome(decoders.decoders()[one.decoder], one.input) == one.outcome, f"{one.decoder}: {one.input!r}"
    shown = {(one.decoder, one.outcome.startswith("value ")) for one in kept}
    expected = {(name, True) for name in decoders.decoders()}
    expected |= {(name, False) for name, decoder in decoders.decoders().items() if decoder.refuses}
    assert shown == expected, "each decoder has inputs that it takes, and some that it refuses"
    assert any(one.failed for one in kept)
