"""Classic speculative sampling as a second method of verification: `policy.verification = "rejection"`.

Candidates of the local draft are drawn from its distribution and tested with min(1, p/q), by fresh randomness, so no
seed gives the same completion again (docs/rejection.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart
from edgespec.shared.settings import Removed

if TYPE_CHECKING:
    from cloud_gateway.core.verify.verification import Method


def _method() -> Method:
    from cloud_gateway.parts.rejection.sampling import REJECTION

    return REJECTION


PART = GatewayPart(
    "rejection",
    methods={"rejection": _method},
    removed={"policy.share_seed": Removed('`policy.verification = "rejection"` sends workers no seed.', (True,))},
)
