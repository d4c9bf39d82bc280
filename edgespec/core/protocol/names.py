"""Key ids and names of machines, as people see them; no two names look alike.

The id identifies a machine; the name is only easier to remember. Logs show both, as `lab-7 (7ba1073c5e2f9d40)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

KEY_ID_DIGITS = 16
"""64 bits: making another key with the same id takes about 2**64 attempts."""
MAX_NAME = 64
NAME_PATTERN = r"^[A-Za-z0-9](?: ?[A-Za-z0-9._@+-])*\Z"
"""Names of machines: printable ASCII, and no space that cannot be seen (at an end, or two in a row).

Other scripts are excluded because each has letters that look like Latin ones; brackets because they enclose the id.
"""


def key_id(key: bytes) -> str:
    """The id of a public key in logs, lists, commands and mDNS: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(key).hexdigest()[:KEY_ID_DIGITS]


def free_name(requested: str, taken: Collection[str]) -> str:
    """`requested`, or with a number after it where one of `taken` is the same but for capitals."""
    used = {name.casefold() for name in taken}
    name = requested
    number = 1
    while name.casefold() in used:
        number += 1
        suffix = f"-{number}"
        name = requested[: MAX_NAME - len(suffix)].rstrip() + suffix

    return name
