"""Python's cycle collector: kept from looking through the loaded models, and from running in every round."""

from __future__ import annotations

import asyncio
import gc
from typing import NoReturn

ALLOCATIONS = 20_000
"""Container objects made before the youngest generation is collected. A round of one request
leaves about 10, since pruned candidates are freed at once (core/drafting/tree.py); what else the process makes, and
keeps for long, would start it at Python's 700 in the middle of rounds. What waits for it stays below 10 MB."""
SWEEP_S = 30.0
"""Between full collections. An ended link leaves cycles with its TLS buffers, about a quarter of a megabyte; links grow
so old that the younger generations' collections never see them again, and the oldest one's comes after hours.
"""


def spare_rounds() -> None:
    """Call once, when the models are loaded: what exists then is taken for permanent and never looked through again.

    With torch and a tokenizer loaded a full collection looks through half a million objects, which stops every thread.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, 10, 10)


async def sweep() -> NoReturn:
    """Frees what ended connections leave, until it is cancelled: some milliseconds each time, after `spare_rounds`."""
    while True:
        await asyncio.sleep(SWEEP_S)
        gc.collect()
