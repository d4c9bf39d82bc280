"""The audit log's files, for `python -m tools.fuzz`."""

from __future__ import annotations

from cloud_gateway.parts.audit.book import FILE_NAME, entries
from tools.fuzz.decoder import Stored

LINE = b'{"time":1.5,"event":"assigned","request":"r","key":"k","key_name":"n","worker":"w","worker_name":"lab"}\n'
STORED = {"audit log": Stored(FILE_NAME, lambda path: list(entries(path.parent)), [LINE * 2])}
