"""What a gateway's tokenizers may cost: one file of a pairing, four fetches an hour, one trial of a refused one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from edgespec.parts.text_translation.store import MAX_FETCHES, MAX_FILES, PERIOD_S, TokenizerStore

NOW = 1_800_000_000.0
pytestmark = pytest.mark.claim("a-gateways-tokenizer-ends-no-worker")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "edgespec" / "tokenizers"


def tokenizers(folder: Path) -> list[Path]:
    """Without the records of fetches."""
    return [path for path in folder.iterdir() if path.suffix != ".json"]


def test_a_pairing_keeps_one_file_and_the_folder_few(folder: Path) -> None:
    store = TokenizerStore("worker", 1)
    for number in range(20):
        store.keep(bytes([number]))
    assert [path.read_bytes() for path in tokenizers(folder)] == [bytes([19])]
    assert store.kept(hashlib.sha256(bytes([19])).digest()) == bytes([19])
    assert store.kept(hashlib.sha256(bytes([18])).digest()) is None

    earlier = folder / ("0" * 64)
    earlier.write_bytes(b"of an earlier version")
    os.utime(earlier, (1, 1))
    for pairing in range(2, 2 + MAX_FILES):
        other = TokenizerStore("worker", pairing)
        other.begin(NOW)
        other.keep(b"data")
    assert len(tokenizers(folder)) == MAX_FILES and not earlier.exists()
    assert len([*folder.iterdir()]) <= 2 * MAX_FILES


def test_fetches_are_counted_over_restarts_and_by_pairing() -> None:
    for number in range(MAX_FETCHES):
        store = TokenizerStore("worker", 1)
        assert store.next_at(NOW + number) is None
        store.begin(NOW + number)

    started_again = TokenizerStore("worker", 1)
    for now in (NOW + MAX_FETCHES, NOW + PERIOD_S - 1):
        assert started_again.next_at(now) == NOW + PERIOD_S
    assert started_again.next_at(NOW + PERIOD_S) is None
    assert TokenizerStore("worker", 2).next_at(NOW + MAX_FETCHES) is None, "of another gateway, or paired again"


def test_a_clock_that_is_set_back_delays_the_next_fetch_by_an_hour() -> None:
    store = TokenizerStore("worker", 1)
    for _ in range(MAX_FETCHES):
        store.begin(NOW + 1e6)
    assert store.next_at(NOW) == NOW + PERIOD_S


def test_a_refusal_is_remembered_for_an_hour() -> None:
    TokenizerStore("worker", 1).refuse(b"d" * 32, "it ends llama.cpp", NOW)
    store = TokenizerStore("worker", 1)
    assert store.refusal(b"d" * 32, NOW + PERIOD_S - 1) == "it ends llama.cpp"
    assert store.refusal(b"e" * 32, NOW) == store.refusal(b"d" * 32, NOW + PERIOD_S) == ""
    assert TokenizerStore("worker", 2).refusal(b"d" * 32, NOW) == ""


def test_a_damaged_record_and_a_folder_that_cannot_be_written_cost_a_fetch(folder: Path) -> None:
    store = TokenizerStore("worker", 1)
    store.begin(NOW)
    (record,) = folder.iterdir()
    record.write_bytes(b"{")
    assert TokenizerStore("worker", 1).next_at(NOW) is None

    record.unlink()
    folder.rmdir()
    folder.write_bytes(b"in the way")
    store.keep(b"data")
    for _ in range(MAX_FETCHES):
        store.begin(NOW)
    assert store.next_at(NOW) == NOW + PERIOD_S, "this process still counts them"
