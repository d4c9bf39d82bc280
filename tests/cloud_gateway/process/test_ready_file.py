"""The ready file, with the ports of a gateway."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloud_gateway.process.serve import _write_ready
from edgespec.core.errors import ConfigError


def test_the_ready_file_is_its_owners_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        _write_ready(tmp_path / "ready.json", {"pid": 1})
    finally:
        os.umask(before)
    assert (tmp_path / "ready.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / "ready.json").read_text()) == {"pid": 1}
    with pytest.raises(ConfigError, match="cannot be written"):
        _write_ready(tmp_path / "none" / "ready.json", {})
