"""One forward pass of a causal model over the rows of trees or prompts, each behind the keys and values of its slot.

`HfForward` runs transformers' own code, for any architecture. `llama_forward.LlamaForward` is the fast path for the
Llama family; this one is its slow twin.

`SlotKv` is the KV cache of a slot: buffers that are written in place, and kept along one path of a tree by compaction.
All planes of one shape (a layer has two, its keys and its values) share one tensor, so that `keep` is one gather for
all layers together rather than two for each.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from edgespec.core.errors import ModelError

MIN_ENTRIES = 256
"""Entries of a slot's first buffer; it doubles from there."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Keys are [heads, entries, key_dim] in one layer, values [heads, entries, value_dim]."""

    heads: int
    key_dim: int
    value_dim: int


class SlotKv:
    """Keys and values of one slot's tokens. `length` entries are committed; a forward pass writes behind them."""

    def __init__(
        self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device, limit: int = 2**20
    ) -> None:
        """`limit`: entries beyond which the buffers no longer double, but grow to the size needed."""
        self.length = 0
        self.capacity = 0
        self.limit = limit
        self._dtype = dtype
        self._device = device
        planes = [(s.heads, dim) for s in shapes for dim in (s.key_dim, s.value_dim)]
        self._groups = {
            shape: [i for i, plane in enumerate(planes) if plane == shape] for shape in dict.fromkeys(planes)
        }
        self._stacks: list[Tensor] = []
        self.planes: list[Tensor] = []
        """Keys of layer i at 2i, values at 2i + 1, each [heads, capacity, dim]."""
        self.layers: list[Tensor] = []
        """Keys and values of layer i together, [2 · heads, capacity, dim]; empty where the layers' shapes differ."""

    def reserve(self, rows: int) -> None:
        """Makes room for `rows` entries behind the committed ones. Views taken before become invalid."""
        needed = self.length + rows
        if needed <= self.capacity:
            return

        capacity = max(MIN_ENTRIES, self.capacity)
        while capacity < needed:
            capacity *= 2
        capacity = max(needed, min(capacity, self.limit))
        old = self._stacks
        self._stacks = []
        self.planes = [torch.empty(0)] * sum(map(len, self._groups.values()))
        for index, ((heads, dim), members) in enumerate(self._groups.items()):
            stack = torch.zeros(len(members), heads, capacity, dim, dtype=self._dtype, device=self._device)
            if old:
                stack[:, :, : self.length] = old[index][:, :, : self.length]
            self._stacks.append(stack)
            for plane, view in zip(members, stack.unbind(0), strict=True):
                self.planes[plane] = view
        if len(self._stacks) == 1:
            (heads, dim), count = next(iter(self._groups)), len(self.planes) // 2
            self.layers = list(self._stacks[0].view(count, 2 * heads, capacity, dim).unbind(0))
        self.capacity = capacity

    def keep(self, rows: Sequence[int]) -> None:
        """Commits these rows behind the committed entries, in this order, and drops the others.

        `rows` rises strictly, as the rows of one path do, so a row never moves back.
        """
        settled = next((i for i, row in enumerate(rows) if row != i), len(rows))
        if settled < len(rows):
            moved = torch.tensor(rows[settled:], device=self._device) + self.length
            first = self.length + settled
            for stack in self._stacks:
                stack[:, :, first : first + len(moved)] = stack.index_select(2, moved)
        self.length += len(rows)

    def copy_from(self, other: SlotKv, length: int) -> None:
        """Copies the first `length` committed entries of another slot."""
        self.length = 0
        if length:
            self.reserve(length)
            for mine, theirs in zip(self._stacks, other._stacks, strict=True):
                mine[:, :, :length] = theirs[:, :, :length]
            self.length = length


class SlotLayer(CacheLayerMixin):
    """One layer of a slot, for transformers' attention modules."""

    def __init__(self, kv: SlotKv, index: int) -> None:
        super().__init__()
        self._kv = kv
        self._index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: the slot's buffers are made before the pass."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes [1, heads, n, dim] behind the committed entries; returns views of those and the new ones."""
        start = self._kv.length
        end = start + key_states.shape[-2]
        keys, values = self._kv.planes[2 * self._index : 2 * self._index + 2]
        keys[:, start:end], values[:, start:end] = key_states[0], value_states[0]
        return keys[None, :, :end], values[None, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of entries that a pass over `query_length` rows attends to, and the position of the first."""
        return self._kv.length + query_length, 0

    def get_seq_length(self) -> int:
        """Committed entries."""
        return self._kv.length

    def get_max_length(self) -> int:
        """-1: the layer has no limit."""
        return -1


def slot_cache(kv: SlotKv, layers: int) -> Cache:
    """The slot as the `past_key_values` of a transformers model."""
    return Cache(layers=[SlotLayer(kv, index) for index in range(layers)])


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
        kv = part.kv
        ids = part.ids
        positions = part.positions
        tail = part.tail
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
