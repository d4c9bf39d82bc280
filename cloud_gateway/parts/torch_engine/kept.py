"""Some layers of a target in torch, to draft with (`DraftingLayers`): the weights are the target's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from cloud_gateway.parts.torch_engine.forward import Part, SlotKv, wait_for
from cloud_gateway.parts.torch_engine.llama_forward import SPARE_POSITIONS, LlamaForward


class KeptLayers:
    """Lines of keys and values of their own: a kept layer sees other inputs than in the whole model."""

    def __init__(self, forward: LlamaForward, device: torch.device, context: int, lines: int) -> None:
        """`forward`: of the layers that are kept."""
        self._forward = forward
        self._device = device
        self._kv = [SlotKv(forward.shapes, forward.kv_dtype, device, context) for _ in range(lines)]
        self.max_tokens = context + SPARE_POSITIONS

    def cut(self, line: int, length: int) -> None:
        """See `DraftingLayers`."""
        self._kv[line].length = length

    @torch.inference_mode()
    def copy(self, line: int, other: int, length: int) -> None:
        """See `DraftingLayers`."""
        self._kv[line].copy_from(self._kv[other], length)

    @torch.inference_mode()
    def evaluate(self, tokens: Sequence[tuple[int, Sequence[int]]], *, head: bool) -> list[NDArray[np.float32]]:
        """See `DraftingLayers`."""
        parts = [Part.chain(self._kv[line], added, self._device) for line, added in tokens]
        logits = self._forward(parts, head=head)
        wait_for(self._device)
        for line, added in tokens:
            self._kv[line].length += len(added)

        return [rows[-1].float().cpu().numpy() for rows in logits]
