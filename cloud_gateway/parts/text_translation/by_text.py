"""The part's `OtherTokenizers`: translation by text, for local drafts and for workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.core.errors import ModelError

if TYPE_CHECKING:
    from cloud_gateway.links.link import TokenizerOffer
    from cloud_gateway.models.drafts import MakeLocalDraft
    from edgespec.parts.text_translation.translation import Translator


class ByText:
    """Translates draft tokens by their text."""

    def draft_class(self, target: Path, draft: Path) -> MakeLocalDraft:
        """A `TranslatedDraft`. Raises ModelError for targets in no GGUF file and kinds that are not translated."""
        from cloud_gateway.parts.text_translation.draft import MakeTranslatedDraft, translator
        from edgespec.shared.vocabfiles import is_gguf

        if not is_gguf(target):
            raise ModelError("and translation needs a target in a GGUF file")

        return MakeTranslatedDraft(translator(target, draft))

    def describe(self, target: Path, draft: Path) -> str:
        """How much of the target's vocabulary the draft can write. Raises ModelError."""
        from cloud_gateway.parts.text_translation.draft import translator

        pair = translator(target, draft)
        written, same = expressed(pair)
        return (
            f"translated, as a worker's draft with `draft.target`; the draft writes {written:.1%} of the target's "
            f"{pair.target.vocab_size} tokens, {same:.1%} as one of its own"
        )

    def offer(self, target: Path) -> TokenizerOffer:
        """The tokenizer in a GGUF file; none of another model, or of a kind that is not translated."""
        from cloud_gateway.parts.text_translation.offer import FileOffer
        from edgespec.parts.text_translation.tokenizer_file import packed
        from edgespec.shared.vocabfiles import gguf_metadata, is_gguf

        if not is_gguf(target):
            return FileOffer(b"")

        return FileOffer(packed(gguf_metadata(target)))


def expressed(pair: Translator) -> tuple[float, float]:
    """Shares of the target's vocabulary: the tokens that the draft can write, and those that are one of its tokens."""
    known = {piece for piece in pair.draft.pieces if piece}
    entries = [piece for piece in pair.target.pieces if piece]
    same = sum(piece in known for piece in entries) + len(pair.marks)

    written = same
    for piece in entries:
        if piece not in known:
            written += all(bytes((byte,)) in known for byte in piece)

    size = len(pair.target.pieces)
    return written / size, same / size
