"""Other tokenizers: a draft model drafts for a target whose tokenizer differs, by the text of both.

The worker fetches the target's tokenizer from the gateway, or reads it from the file of `draft.target`, and its
messages have the target's tokens then. The gateway has a part of the same name, which sends the tokenizer, and
translates for a local draft too. Results: docs/results/translation.md

Public, by module:

- `gguf`: `GgufTokenizer`
- `tokenizer_file`: `packed`
- `translation`: `CommittedText`, `Translator`, `whole_characters`
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.shared.fields import OptionalModelPath
from edgespec.shared.settings import Section
from edgespec.worker.part import WorkerPart

if TYPE_CHECKING:
    from edgespec.llamacpp.drafter import Drafter
    from edgespec.worker.config import WorkerSettings
    from edgespec.worker.tokens import TargetTokens


class TargetFileSection(Section, frozen=True):
    """[draft]: the file with the target's tokenizer."""

    target: OptionalModelPath = ""


def _target_tokens(settings: WorkerSettings, drafter: Drafter) -> TargetTokens:
    from edgespec.parts.text_translation.tokens import TranslatedTokens

    return TranslatedTokens(settings, settings.of(TargetFileSection).target, drafter)


PART = WorkerPart(
    "text_translation",
    {"draft": TargetFileSection},
    example=Path(__file__).with_name("worker.toml"),
    target_tokens=_target_tokens,
)
