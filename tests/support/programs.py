"""What tests need of the machine: a program or model that is missing fails the test, it does not skip it.

A test that is skipped if its program is missing promises nothing on the machine that counts. A developer without a
program may leave its tests out with SKIP_MISSING_PROGRAMS=1; CI=true, which `.ci/run` sets, overrules that.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

DEBIAN_PACKAGES = {
    "caddy": "caddy",
    "chromium": "chromium",
    "dbus-daemon": "dbus",
    "ip": "iproute2",
    "nginx": "nginx-light",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
}
"""The package of each program that a test may need."""
SWITCH = "SKIP_MISSING_PROGRAMS"


def require(program: str) -> str:
    """The program's path; without it the test fails, or is skipped if a developer asks for that."""
    path = shutil.which(program)
    if path is None:
        _fail_or_skip(f"{program} is missing: apt-get install {DEBIAN_PACKAGES[program]}")
    return str(path)


def require_model(path: Path, command: str) -> Path:
    """The model's file; without it the test fails with the command that fetches it, or is skipped in the same way."""
    if not path.exists():
        _fail_or_skip(f"{path.name} is missing: {command}")
    return path


def _fail_or_skip(missing: str) -> None:
    if os.environ.get(SWITCH) == "1" and os.environ.get("CI") != "true":
        pytest.skip(missing)
    pytest.fail(f"{missing}, or leave its tests out with {SWITCH}=1")
