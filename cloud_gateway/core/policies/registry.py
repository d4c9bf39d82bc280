"""The policies by name: WANSpec's Algorithm 1, the baselines and the adaptive policy."""

from __future__ import annotations

from collections.abc import Callable

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.baselines import Amusd, Colocated, ColocatedTree, Plain
from cloud_gateway.core.policies.policy import Learnt, Policy
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.policies.wanspec import RollingWanSpec, WanSpec

POLICIES: dict[str, Callable[[PolicySettings], Policy]] = {
    "plain": Plain,
    "colocated": Colocated,
    "colocated-tree": ColocatedTree,
    "wanspec": WanSpec,
    "adaptive": Adaptive,
    "rolling-k": RollingWanSpec,
    "amusd": Amusd,
}
NAMES = tuple(POLICIES)
ALONE = tuple(name for name, made in POLICIES.items() if not made(PolicySettings(name=name)).asks_workers)
"""Policies that ask no worker."""


def make(settings: PolicySettings, learnt: Learnt | None = None) -> Policy:
    """A fresh policy as the settings name it, with what earlier completions of its kind taught it."""
    policy = POLICIES[settings.name](settings)
    if learnt is not None:
        policy.resume(learnt)
    return policy
