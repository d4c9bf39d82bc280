"""`edgespec models`: which models are here, fetching them, and making others of them.

What fetched models are and where they lie is in the core, so that a program without this part uses those that are
there. The gateway has a part of the same name.

Public, by module:

- `command`: all
- `verbs`: all
"""

from __future__ import annotations

from edgespec.parts.model_files.verbs import ModelsVerb
from edgespec.worker.part import WorkerPart

PART = WorkerPart("model_files", verbs=[ModelsVerb()])
