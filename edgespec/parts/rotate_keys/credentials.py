"""Keys that are credentials of systemd, which no command replaces.

A command in a shell sees no credentials. So each daemon notes at its start which of its keys are some, in
`credentials.txt` of the key folder, one path a line.
"""

from __future__ import annotations

from pathlib import Path

from edgespec.core.errors import ConfigError
from edgespec.shared.files import locked, read_private, write_private
from edgespec.shared.keystore import KeyStore

NAMES = ("identity.key", "tls.pem")
FILE = "credentials.txt"


def note_credentials(store: KeyStore) -> None:
    """Notes which keys of this daemon are credentials. Raises KeyStoreError."""
    credentials = [store.credential(name) for name in NAMES]
    lines = "".join(f"{path}\n" for path in credentials if path is not None)

    path = store.folder / FILE
    if lines or path.exists():
        with locked(store.folder):
            write_private(path, lines.encode())


def check_writable(store: KeyStore, name: str) -> None:
    """Raises ConfigError if the key of this file is a credential of the daemon, KeyStoreError."""
    credential = store.credential(name)
    if credential is None:
        credential = _noted(store.folder / FILE, name)

    if credential is not None:
        raise ConfigError(
            f"{credential} is a credential, which is never written: put this key into {store.folder / name} "
            "(mode 0600), remove its LoadCredential= from the unit, restart the service, and rotate then."
        )


def _noted(file: Path, name: str) -> Path | None:
    """The credential of this name that the daemon noted at its last start."""
    data = read_private(file)
    if data is None:
        return None

    for line in data.decode(errors="replace").splitlines():
        path = Path(line)
        if path.name == name:
            return path

    return None
