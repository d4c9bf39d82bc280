"""The policies by name: plain decoding, WANSpec's Algorithm 1 and the adaptive policy.

Parts bring others (`GatewayPart.policies`). Engine, simulator and the player of traces are given all as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.alone import Plain
from cloud_gateway.core.policies.policy import Learnt, Policy
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.policies.wanspec import WanSpec
from edgespec.core.errors import ConfigError

PolicyMaker = Callable[[PolicySettings], Policy]
"""Makes the policy of one request. Called when the request is submitted; it does no work."""
Policies = Mapping[str, PolicyMaker]
POLICIES: Policies = {
    "plain": Plain,
    "wanspec": WanSpec,
    "adaptive": Adaptive,
}
"""Those of the core."""
NAMES = tuple(POLICIES)


def make(
    settings: PolicySettings,
    learnt: Learnt | None = None,
    policies: Policies = POLICIES,
) -> Policy:
    """A fresh policy as the settings name it, with what earlier completions of its kind taught it.

    Raises ConfigError if it is none of `policies`.
    """
    require_policies([settings.name], policies)
    policy = policies[settings.name](settings)
    if learnt is not None:
        policy.resume(learnt)
    return policy


def require_policies(names: Iterable[str], policies: Policies) -> None:
    """Raises ConfigError for the first of these names that is no policy here."""
    for name in names:
        if name not in policies:
            raise ConfigError(
                f'This gateway has no policy "{name}", or lacks the part that brings it. '
                f"It has {', '.join(sorted(policies))}."
            )
