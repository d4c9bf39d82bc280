"""One forward pass of a causal model over the rows of trees or prompts, each behind the keys and values of its slot.

`HfForward` runs transformers' own code, for any architecture. `llama_forward.LlamaForward` is the fast path for the
Llama family; this one is its slow twin.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from cloud_gateway.models.target_model.cache import LayerShape, SlotKv, slot_cache
from edgespec.core.errors import ModelError

MASKABLE = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Part:
    """One slot's rows in a pass, n of them: `ids` and `positions` are [n].

    `tail` is bool [n, n]: row i attends to row j. Every row also attends to all committed entries of its own slot.
    """

    kv: SlotKv
    ids: Tensor
    positions: Tensor
    tail: Tensor

    @classmethod
    def chain(cls, kv: SlotKv, tokens: Sequence[int], device: torch.device) -> Part:
        """Tokens that follow the committed ones, each after the other."""
        n = len(tokens)
        positions = torch.arange(kv.length, kv.length + n, device=device)
        tail = torch.ones(n, n, dtype=torch.bool, device=device).tril_()
        return cls(kv, torch.tensor(tokens, device=device), positions, tail)


class Forward(Protocol):
    """A model's forward pass. It writes the rows' keys and values behind the slots' committed ones, uncommitted."""

    shapes: Sequence[LayerShape]
    kv_dtype: torch.dtype
    exact: bool
    """Whether a row's logits are meant not to depend on the rows beside it, to the last bit."""
    batched: bool
    """Whether a pass may have the rows of several slots."""
    hidden: Sequence[Tensor]
    """Of the last pass with `head`: what its output embedding was given, [n, width] for each part."""
    prompt_states: bool
    """Whether `hidden` is set without `head` too."""

    def __call__(self, parts: Sequence[Part], *, head: bool = True) -> list[Tensor]:
        """Logits [n, vocab_size] of each part, or an empty list without `head`."""


class HfForward:
    """transformers' own code. Raises ModelError where the cache cannot be rolled back or positions cannot be set."""

    exact = False
    batched = False
    prompt_states = False

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        config = model.config.get_text_config()  # of a model that takes images too, the part that makes text
        self._float_mask = config._attn_implementation == "eager"
        self._masks = _mask_kinds(config)
        self._window = int(getattr(config, "sliding_window", None) or 0)
        self.hidden: Sequence[Tensor] = ()
        model.get_output_embeddings().register_forward_pre_hook(self._see)
        with torch.inference_mode():
            self.shapes: Sequence[LayerShape] = _layer_shapes(model)
        self.kv_dtype: torch.dtype = model.dtype

    def __call__(self, parts: Sequence[Part], *, head: bool = True) -> list[Tensor]:
        (part,) = parts
        kv, ids, positions, tail = part.kv, part.ids, part.positions, part.tail
        kv.reserve(len(ids))
        past = torch.arange(kv.length, device=ids.device)
        full = torch.cat([torch.ones(len(ids), kv.length, dtype=torch.bool, device=ids.device), tail], dim=1)
        near = positions[:, None] - torch.cat([past, positions])[None] < self._window
        masks = {kind: self._mask(full & near if kind == "sliding_attention" else full) for kind in self._masks}
        model = self._model if head else self._model.base_model
        output = model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=slot_cache(kv, len(self.shapes)),
            use_cache=True,
        )
        if head:
            return [output.logits[0]]
        if self.prompt_states:
            self.hidden = [output.last_hidden_state[0]]
        return []

    def _see(self, module: Any, inputs: tuple[Tensor, ...]) -> None:
        self.hidden = [inputs[0][0]]

    def _mask(self, visible: Tensor) -> Tensor:
        """The attention mask for [n, L + n]: bool, or added to the scores where the implementation is `eager`."""
        if self._float_mask:
            zeros = torch.zeros(visible.shape, dtype=self.kv_dtype, device=visible.device)
            return zeros.masked_fill_(~visible, torch.finfo(self.kv_dtype).min)[None, None]
        return visible[None, None]


def wait_for(device: torch.device) -> None:
    """Until it has computed what it was given. On CUDA calls return before: they would be measured as taking no time,
    and the next one that needs a result as taking theirs too."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _mask_kinds(config: Any) -> list[str]:
    """The kinds of masks that the model's layers take, one or both of MASKABLE."""
    kinds = list(dict.fromkeys(getattr(config, "layer_types", None) or []))
    if not kinds:
        kinds = ["sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"]
    if not set(kinds) <= MASKABLE:
        odd = ", ".join(sorted(set(kinds) - MASKABLE))
        raise ModelError(f"A model with layers of kind {odd} cannot verify trees; use one with plain attention.")
    return kinds


def _layer_shapes(model: Any) -> list[LayerShape]:
    """The shapes of the model's keys and values, from a pass over one token."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ModelError(f"{type(model).__name__} takes no position ids, so it cannot verify trees; use another model.")
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    past = model(input_ids=ids, position_ids=ids, use_cache=True).past_key_values
    layers = getattr(past, "layers", None)
    if not layers or not all(isinstance(layer, DynamicLayer) and layer.is_initialized for layer in layers):
        raise ModelError(f"{type(model).__name__} has no KV cache that can be rolled back, so it cannot verify trees.")
    return [LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in layers]
