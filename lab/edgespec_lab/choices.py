"""The choices that the gateway installed here has: policies, sources and methods, of the core and of parts.

Each command line of the lab and of the tools asks once, names the policies that it compares with, and passes the result
on. The lab compares with policies of parts, which a gateway may lack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # verbs import this file, and start without numpy
    from cloud_gateway.core.requests.choices import Choices


def gateway_choices(*policies: str) -> Choices:
    """All that can be chosen by name. Raises ConfigError if one of these policies is not among it."""
    from cloud_gateway.core.policies.registry import require_policies
    from cloud_gateway.part import choices_of
    from cloud_gateway.parts import all_parts

    choices = choices_of(all_parts())
    require_policies(policies, choices.policies)
    return choices
