"""What a worker keeps to learn from: whose texts, within which bounds, and how they are deleted."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Close, Commit, Open, Sampling
from edgespec.parts.healing import store
from edgespec.parts.healing.collector import MAX_OPEN, MAX_TOKENS, MIN_WRITTEN, Collected, Collector
from edgespec.parts.healing.consent import Consent, Consents, Learn, encode, read_consent
from edgespec.parts.healing.store import BLOCK_BYTES, DAY_S, KeptLimits, LearningStore

ANN = "AnnAnn01"
BOB = "BobBob02"
GATEWAY = b"g" * 32
TOKENIZER = b"t" * 32
SCOPES = {ANN: f"key {ANN}", BOB: "group physics"}
PROMPT = [5, 6, 7]
HASH = bytes(32)


class Clock:
    """Unix seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(folder: Path, clock: Callable[[], float], blocks: int = 1000, days: int = 7) -> LearningStore:
    return LearningStore(folder, GATEWAY, KeptLimits(blocks * BLOCK_BYTES, days), clock)


def text(key: str = ANN, first: int = 1, tokens: int = 20) -> Collected:
    return Collected(key, SCOPES[key], [first, *range(2, tokens + 1)], 3)


def first_tokens(folder: Path) -> list[int]:
    found = [store.read_text(path) for path in sorted(store.kept_files(folder), key=lambda path: path.name)]
    return [kept.tokens[0] for kept in found if kept is not None]


# --- which tokens are collected ----------------------------------------------------------------------------------


class Kept:
    """A collector, and what it has kept."""

    def __init__(self) -> None:
        self.texts: list[Collected] = []
        self.collector = Collector(self.texts.append)
        self.collector.allow(SCOPES)

    def run(self, request: int = 1, written: int = 20, prompt: int = 3) -> None:
        """A request whose completion is committed four tokens at a time."""
        self.collector.take(Open(request, 1, prompt, PROMPT, Sampling()))
        for place in range(prompt, prompt + written, 4):
            self.collector.take(commit(place, range(place, place + 4), request))
        self.collector.take(Close(request, 1, "stop"))


def commit(place: int, tokens: range, request: int = 1, pass_us: int = 900) -> Commit:
    return Commit(request, 1, place, list(tokens), HASH, 1000, pass_us, 0)


@pytest.mark.claim("without-consent-a-worker-keeps-nothing")
def test_only_announced_requests_of_keys_that_consented_are_collected() -> None:
    kept = Kept()
    kept.run()
    kept.collector.announce(1, "Nobody00")
    kept.run()
    assert kept.texts == []

    kept.collector.announce(1, BOB)
    kept.run()
    kept.run()
    assert kept.texts == [Collected(BOB, "group physics", [*PROMPT, *range(3, 23)], 3)]


def test_a_consent_that_ends_drops_what_is_being_collected() -> None:
    kept = Kept()
    kept.collector.announce(1, ANN)
    kept.collector.take(Open(1, 1, 3, PROMPT, Sampling()))
    kept.collector.take(commit(3, range(30)))
    kept.collector.announce(2, ANN)
    kept.collector.allow({BOB: SCOPES[BOB]})
    kept.collector.take(Close(1, 1, "stop"))
    kept.run(2)
    assert kept.texts == []


@pytest.mark.parametrize(
    "wrong",
    [
        commit(4, range(9)),
        commit(3, range(9), pass_us=0),
        Open(1, 2, 3, [1, 2, 3, 4], Sampling()),
        Open(1, 2, MAX_TOKENS + 1, PROMPT, Sampling()),
    ],
    ids=["a gap", "draft tokens of a queued answer", "more tokens than the prompt", "a prompt without room"],
)
def test_what_does_not_fit_is_not_collected(wrong: Open | Commit) -> None:
    kept = Kept()
    kept.collector.announce(1, ANN)
    kept.collector.take(Open(1, 1, 3, PROMPT, Sampling()))
    kept.collector.announce(1, ANN)
    kept.collector.take(wrong)
    kept.collector.take(commit(3, range(3, 30)))
    kept.collector.take(None)
    assert kept.texts == []


def test_a_link_that_ends_keeps_what_was_written_until_then() -> None:
    kept = Kept()
    kept.collector.announce(1, ANN)
    kept.collector.take(Open(1, 1, 3, PROMPT, Sampling()))
    kept.collector.take(commit(3, range(MIN_WRITTEN)))
    kept.collector.take(None)
    assert len(kept.texts) == 1
    kept.collector.take(None)
    assert len(kept.texts) == 1


@pytest.mark.claim("a-gateway-cannot-fill-a-learning-workers-disk")
def test_a_gateway_that_opens_without_end_holds_bounded_memory() -> None:
    kept = Kept()
    for request in range(10 * MAX_OPEN):
        kept.collector.announce(request, ANN)
    assert len(kept.collector._announced) == MAX_OPEN
    for request in range(10 * MAX_OPEN):
        kept.collector.announce(request, ANN)
        kept.collector.take(Open(request, 1, 3, PROMPT, Sampling()))
    assert len(kept.collector._open) == MAX_OPEN

    newest = 10 * MAX_OPEN - 1
    for place in range(3, 20_000, 8000):
        kept.collector.take(commit(place, range(8000), newest))
    assert [len(found.tokens) for found in kept.texts] == [MAX_TOKENS]


# --- files on disk -----------------------------------------------------------------------------------------------


def test_texts_are_private_files_that_are_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "learning"
    opened(folder, Clock()).add(text(), TOKENIZER)
    (path,) = store.kept_files(folder)
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    kept = store.read_text(path)
    assert kept == store.KeptText(array("I", range(1, 21)), 3)

    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert store.read_text(path) is None


def test_the_newest_texts_are_kept_within_megabytes_and_days(tmp_path: Path) -> None:
    clock = Clock()
    kept = opened(tmp_path, clock, blocks=3, days=7)
    for first in range(10):
        clock.now += 1
        kept.add(text(first=first), TOKENIZER)
    assert first_tokens(tmp_path) == [7, 8, 9]

    clock.now += 7 * DAY_S - 1
    kept.trim()
    assert first_tokens(tmp_path) == [8, 9]
    clock.now += DAY_S
    opened(tmp_path, clock)
    assert first_tokens(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [store.GATEWAY]


@pytest.mark.claim("a-gateway-cannot-fill-a-learning-workers-disk")
def test_many_small_or_long_texts_cannot_fill_the_disk(tmp_path: Path) -> None:
    kept = opened(tmp_path, Clock(), blocks=20)
    for number in range(100):
        kept.add(text(tokens=4 if number % 2 else MAX_TOKENS), TOKENIZER)
    taken = sum(path.stat().st_blocks * 512 for path in store.kept_files(tmp_path))
    assert 0 < taken <= 20 * BLOCK_BYTES


def test_a_withdrawn_consent_deletes_texts_and_what_they_taught(tmp_path: Path) -> None:
    kept = opened(tmp_path, Clock())
    for key in (ANN, BOB):
        kept.add(text(key), TOKENIZER)
        (tmp_path / store.scope_name(SCOPES[key]) / "draft.gguf").write_text("learnt")

    assert kept.keep_only(SCOPES, TOKENIZER) == 0
    assert kept.keep_only({BOB: SCOPES[BOB]}, TOKENIZER) == 1
    assert [row.key for row in store.kept_rows(tmp_path)] == [BOB]
    assert [path.parent.name for path in tmp_path.glob("*/draft.gguf")] == [store.scope_name(SCOPES[BOB])]

    assert kept.keep_only({BOB: f"key {BOB}"}, TOKENIZER) == 1, "of another scope now"
    kept.add(text(), TOKENIZER)
    assert kept.keep_only(SCOPES, b"o" * 32) == 1, "in tokens of another tokenizer"
    assert list(store.kept_files(tmp_path)) == []


def test_what_was_learnt_goes_with_one_key_of_a_group(tmp_path: Path) -> None:
    kept = opened(tmp_path, Clock())
    kept.add(text(BOB), TOKENIZER)
    kept.add(Collected("CarCar03", SCOPES[BOB], range(20), 3), TOKENIZER)
    draft = tmp_path / store.scope_name(SCOPES[BOB]) / "draft.gguf"
    draft.write_text("learnt")
    assert kept.forget(BOB) == 1
    assert not draft.exists()
    assert [row.key for row in store.kept_rows(tmp_path)] == ["CarCar03"]


@pytest.mark.parametrize(("who", "left"), [(ANN, [BOB]), ("physics", [ANN]), ("", []), ("nobody", [ANN, BOB])])
def test_forgetting_takes_a_key_a_group_or_all(tmp_path: Path, who: str, left: list[str]) -> None:
    kept = opened(tmp_path, Clock())
    for key in (ANN, BOB):
        kept.add(text(key), TOKENIZER)
        kept.add(text(key), TOKENIZER)
    assert kept.forget(who) == 2 * (2 - len(left))
    assert sorted(row.key for row in store.kept_rows(tmp_path)) == left
    kept.add(text(ANN), TOKENIZER)
    assert ANN in [row.key for row in store.kept_rows(tmp_path)]


def test_texts_of_another_gateway_are_deleted(tmp_path: Path) -> None:
    opened(tmp_path, Clock()).add(text(), TOKENIZER)
    opened(tmp_path, Clock())
    assert first_tokens(tmp_path) == [1]
    LearningStore(tmp_path, b"h" * 32, KeptLimits(BLOCK_BYTES, 7), Clock())
    assert first_tokens(tmp_path) == []


# --- what a gateway may send -------------------------------------------------------------------------------------


def test_consents_and_announcements_survive_the_wire() -> None:
    for message in (Consents(TOKENIZER, [Consent(ANN), Consent(BOB, "physics")]), Learn(2**62, ANN)):
        assert read_consent(encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode(["learn", 1, "../../etc"]),
        encode(["learn", 1, "AnnAnn0/"]),
        encode(["learn", -1, ANN]),
        encode(["consents", TOKENIZER, [["AnnAnn01", "a\nb"]]]),
        encode(["consents", TOKENIZER, [[ANN, ""]] * 257]),
        encode(["consents", b"short", []]),
        encode(["other", 1]),
    ],
)
def test_hostile_messages_are_malformed(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not a message about consent"):
        read_consent(data)
