"""Rotation of keys: the verbs that give a machine another key, which its present key signs.

A program follows the rotation of the other side without this part: checking a statement of a new key belongs to the
handshake, and machines that did not follow would have to be paired again. The gateway has a part of the same name.

Public, by module:

- `credentials`: `check_writable`, `note_credentials`, `NAMES`
"""

from __future__ import annotations

from edgespec.parts.rotate_keys.verb import RotateVerb
from edgespec.worker.part import RunningPart, WorkerPart, WorkerProcess


def _start(worker: WorkerProcess) -> RunningPart:
    from edgespec.parts.rotate_keys.credentials import note_credentials
    from edgespec.shared.keystore import KeyStore

    note_credentials(KeyStore(worker.state_dir))
    return RunningPart()


PART = WorkerPart("rotate_keys", verbs=[RotateVerb()], start=_start)
