"""What the configuration and a request choose by name: policies, sources of candidates, methods of verification.

Each of them is the core's or a part's. One value of this type describes a process: it is made once, and passed to what
checks names. Dictionaries that parts write to were not taken: two gateways of one process would share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloud_gateway.core.policies.registry import POLICIES, Policies
from cloud_gateway.core.policies.settings import SOURCES
from cloud_gateway.core.verify.verification import BUILT_IN, Method


@dataclass(frozen=True, slots=True)
class Choices:
    """The names that are allowed. Without arguments: those of the core."""

    policies: Policies = field(default_factory=lambda: POLICIES)
    sources: tuple[str, ...] = SOURCES
    methods: Mapping[str, Method] = field(default_factory=lambda: BUILT_IN)


CORE = Choices()
