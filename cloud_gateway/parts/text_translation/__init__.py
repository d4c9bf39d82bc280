"""Other tokenizers: local drafts, and workers, draft for a target whose tokenizer differs from theirs, by text.

A local draft reads its own tokens of the text and is ranked over the target's (draft.py). A worker translates by
itself, with the target's tokenizer that this part sends (offer.py); that half is in the worker's part of the same name.
"""

from __future__ import annotations

from cloud_gateway.part import GatewayPart
from cloud_gateway.parts.text_translation.by_text import ByText

PART = GatewayPart("text_translation", other_tokenizers=ByText())
