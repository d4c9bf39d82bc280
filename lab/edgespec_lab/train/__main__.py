"""`python -m edgespec_lab.train VERB`: what drafts for a target, trained on the target's own text.

medusa, eagle FOLDER      heads over the target's states: FOLDER/medusa.safetensors, FOLDER/eagle.safetensors
layers                    which of its layers the target drafts for itself with
measure FOLDER GGUF ...   drafts compared on the text of FOLDER that nothing was trained on
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgespec_lab import verbs
from edgespec_lab.train.run import KINDS, verb

NAMES: Sequence[str | verbs.Verb] = (*map(verb, KINDS), "layers", "measure")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the verb."""
    return verbs.run(verbs.command("edgespec_lab.train", NAMES, (__doc__ or "").partition("\n")[0]), arguments)


if __name__ == "__main__":
    sys.exit(main())
