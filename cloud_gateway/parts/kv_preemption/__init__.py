"""Room in the KV cache in steps: API keys share a cache that is smaller than all slots could use.

A request of the key that holds most is preempted if another key needs the room (`cells.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart

if TYPE_CHECKING:
    from cloud_gateway.core.limits.rooms import Rooms


def shared_rooms(capacity: int, rows: int) -> Rooms:
    """The `RoomsMaker` of this part."""
    from cloud_gateway.parts.kv_preemption.cells import Cells

    return Cells(capacity, rows)


PART = GatewayPart("kv_preemption", rooms=shared_rooms)
