"""The names that the worker of this machine has for its gateways."""

from __future__ import annotations

import os

from edgespec.core.errors import ConfigError, KeyStoreError
from edgespec.shared import folders
from edgespec.shared.paired import PairedGateways
from edgespec.worker import config


def name_of(key: bytes) -> str | None:
    """The name of the gateway that has this public key, if the worker of this machine is paired with it."""
    from edgespec.parts import all_parts

    try:
        settings = config.load(None, all_parts())
        folder = folders.state_dir("worker", settings.daemon.state_dir) / "keys"
        if not os.access(folder, os.R_OK):
            return None
        gateway = PairedGateways(folder).with_key(key)
    except (ConfigError, KeyStoreError):  # another command says what is wrong there
        return None

    if gateway is None:
        return None
    return gateway.name
