"""The official client of the part's tests; each file has its own gateway."""

from __future__ import annotations

from tests.cloud_gateway.api.conftest import client

__all__ = ["client"]
