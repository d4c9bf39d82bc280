"""The list of the worker's parts. No other file of the product names one of them.

A part is removed by its line here, `git rm -r edgespec/parts/NAME tests/parts/NAME`, and its page.
"""

from __future__ import annotations

from edgespec.parts import (
    doctor,
    flood_guard,
    healing,
    known_answers,
    mdns,
    model_files,
    owner_signs,
    peer_relay,
    request_traces,
    rotate_keys,
    stopwatch,
    system_service,
    text_translation,
    thread_choice,
)
from edgespec.shared.part import brought
from edgespec.worker.part import WorkerPart

PARTS: tuple[WorkerPart, ...] = (
    doctor.PART,
    flood_guard.PART,
    healing.PART,
    known_answers.PART,
    mdns.PART,
    model_files.PART,
    owner_signs.PART,
    peer_relay.PART,
    request_traces.PART,
    rotate_keys.PART,
    stopwatch.PART,
    system_service.PART,
    text_translation.PART,
    thread_choice.PART,
)


def all_parts() -> tuple[WorkerPart, ...]:
    """The list, and the parts that other distributions bring. Raises ConfigError."""
    return PARTS + brought("edgespec.parts", WorkerPart)
