"""Settings that leave the ports of the gateway's parts to the system, so that gateways can run beside each other."""

from __future__ import annotations

from cloud_gateway.parts import all_parts

PART_PORTS = {f"{port.table}.port": 0 for part in all_parts() for port in part.ports}
"""0 by dotted key."""
TOML = "".join(f"{key} = {number}\n" for key, number in PART_PORTS.items())
"""Lines for the beginning of a gateway.toml."""
