"""`python -m tools.parts.campus_store.search`: the time of a step, a restart and a deletion, by the texts stored.

The texts are drawn: 96 tokens each, by a Zipf distribution over 49,152 tokens. A tenth of each text is a passage of an
earlier one. A step takes one committed token and asks for 16 candidates. Half of the texts that are followed are stored
ones, the others are new.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cloud_gateway.auth import KeyRing
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.sources.interface import SourceStart
from cloud_gateway.parts.campus_store.disk import Disk
from cloud_gateway.parts.campus_store.index import StoredText, backwards
from cloud_gateway.parts.campus_store.source import StoreSource
from cloud_gateway.parts.campus_store.store import Store, StoreLimits, tag
from edgespec_lab.markdown import table

COUNTS = (10, 1_000, 100_000)
LENGTH = 96
VOCABULARY = 49_152
FOLLOWED = 40
"""Texts of which each step is timed."""
LIMITS = StoreLimits(2**30, 1, prompts=False)


def drawn(count: int) -> list[list[int]]:
    """Texts; one in ten of their passages of eight tokens or so is that of an earlier text."""
    draw = np.random.default_rng(1)
    tokens = draw.zipf(1.2, size=(count, LENGTH)) % VOCABULARY
    for number in range(1, count):
        start = draw.integers(LENGTH - 10)
        tokens[number, start : start + 10] = tokens[draw.integers(number), start : start + 10]
    found: list[list[int]] = tokens.tolist()
    return found


def steps(store: Store, texts: Sequence[Sequence[int]], first: int) -> list[float]:
    """Microseconds of each step. `first`: number of the first text, by which its prompt is known."""
    taken: list[float] = []
    for number, text in enumerate(texts, first):
        source = StoreSource(SourceStart([number], b"scope"), store)
        source.committed([number])
        for token in text:
            began = time.perf_counter()
            source.committed([token])
            source.propose(16)
            taken.append(1e6 * (time.perf_counter() - began))
    return taken


def row(count: int, folder: Path) -> list[str]:
    """One line of the table."""
    ring = KeyRing(folder / "keys")
    key, _ = ring.create("measured")
    texts = drawn(count + FOLLOWED)
    disk = Disk(folder / "texts", "drawn", VOCABULARY)
    now = int(time.time())
    disk.replace(
        key.id, [StoredText(key.id, now, backwards([tag([at]), *text])) for at, text in enumerate(texts[:count])]
    )

    began = time.perf_counter()
    store = Store(LIMITS, ring, disk)
    store.announce(GenerationRequest([1], 1, cache_scope=b"scope", key=key.id))
    while (scope := store.scope(b"scope")) is None or len(scope.texts) < count:
        time.sleep(0.01)
    loaded_s = time.perf_counter() - began
    (held,) = store.rows()

    known = steps(store, texts[: min(count, FOLLOWED)], 0)
    new = steps(store, texts[count:], count)
    began = time.perf_counter()
    store.forget(key.id).result()
    forgotten_ms = 1e3 * (time.perf_counter() - began)
    store.close()

    sizes = [f"{int(str(held[name])) / 1e6:.2f}" for name in ("memory_bytes", "disk_bytes")]
    times = [f"{np.median(taken):.0f} ({np.quantile(taken, 0.99):.0f})" for taken in (known, new)]
    return [f"{count:,}", *times, f"{loaded_s:.2f}", f"{forgotten_ms:.1f}", *sizes]


def main() -> None:
    """Prints the table."""
    heads = ("texts", "µs a step, stored text (p99)", "new text", "restart, s", "deletion, ms", "MB memory", "MB disk")
    rows: list[list[str]] = []
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(count, Path(folder)))
    print("\n".join(table(heads, rows)))


if __name__ == "__main__":
    main()
