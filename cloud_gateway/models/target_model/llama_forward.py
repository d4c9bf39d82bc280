"""The forward pass of the Llama family, written out: a third of the operations that the modules of transformers make.

`exact` makes the logits of a row independent of the rows beside it, bit for bit, and so verification in bfloat16
equal to plain decoding. Two things are needed on a CPU. Products take at least MIN_EXACT_ROWS rows, from which on
packed ones sum each row in the same order however many there are (plain ones mostly do). And attention is computed in
float64, whose rounding disappears when the result is rounded to the model's numbers, so that the order of the keys (a
tree's siblings lie between a row and its ancestors) has no effect. Keys and values are then kept in float64 too, at
8 bytes a number. `torch.TorchTarget` measures at loading whether the logits are exact on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from cloud_gateway.models.target_model.cache import LayerShape, SlotKv
from cloud_gateway.models.target_model.linear import Linear, PackedLinear, PlainLinear

Kernels = Literal["packed", "plain"]
MIN_EXACT_ROWS = 4
"""Rows of a product from which on the order of summation no longer depends on their number, as measured."""
SPARE_POSITIONS = 64
"""Positions beyond the context that rows of a tree may have."""
FAMILY = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"}
ROPES = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding whose angles depend on the position only, so that one table serves all passes."""


@dataclass(frozen=True, slots=True)
class _Layer:
    norm_1: Tensor
    qkv: Linear
    out: Linear
    norm_2: Tensor
    gate: Linear
    up: Linear
    down: Linear


def is_plain_llama(model: Any) -> bool:
    """Whether `LlamaForward` computes what this model does."""
    config = model.config
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        type(model).__name__ in FAMILY
        and config.hidden_act == "silu"
        and not window
        and rope in ROPES
        and kinds == {"full_attention"}
    )


class LlamaForward:
    """Uses the weights of a transformers model; with packed kernels that model cannot run afterwards."""

    def __init__(self, model: Any, context: int, *, kernels: Kernels = "packed", exact: bool = True) -> None:
        config, body = model.config, model.model
        attention = body.layers[0].self_attn
        self._dim: int = attention.head_dim
        self._kv_heads: int = config.num_key_value_heads
        self._group: int = config.num_attention_heads // config.num_key_value_heads
        self._scale: float = attention.scaling
        self._eps: float = config.rms_norm_eps
        self._width: int = config.hidden_size
        self.dtype: torch.dtype = model.dtype
        self.kv_dtype = torch.float64 if exact else model.dtype
        self.exact = exact
        self._min_rows = MIN_EXACT_ROWS if exact else 1
        self.shapes: Sequence[LayerShape] = [LayerShape(self._kv_heads, self._dim, self._dim)] * len(body.layers)
        self._embedding, self._norm = body.embed_tokens.weight.detach(), body.norm.weight.detach()
        self._cos, self._sin = _rotary_table(body.rotary_emb, self._embedding, context + SPARE_POSITIONS)
        with torch.inference_mode():
            self._layers = [_take_layer(layer, kernels) for layer in body.layers]
            self._head = _take([model.lm_head], kernels)

    def __call__(self, kv: SlotKv, ids: Tensor, positions: Tensor, tail: Tensor, *, head: bool = True) -> Tensor | None:
        """See `Forward`."""
        rows = len(ids)
        if rows < self._min_rows:
            ids, positions, tail = _pad(ids, positions, tail, self._min_rows - rows)
        kv.reserve(len(ids))
        # [n, 1, dim]: one angle per row for all heads. The lower half's sine is negated, so that rotating is a roll.
        cos, sin = self._cos[positions], self._sin[positions]
        bias = self._bias(tail, kv.length)
        x = F.embedding(ids, self._embedding)
        for layer, stored in zip(self._layers, kv.layers, strict=True):
            h = F.rms_norm(x, (self._width,), layer.norm_1, self._eps)
            x = layer.out.plus(self._attend(layer.qkv(h), stored, kv.length, cos, sin, bias), x)
            h = F.rms_norm(x, (self._width,), layer.norm_2, self._eps)
            x = layer.down.plus(layer.up.times(h, layer.gate.silu(h)), x)
        if not head:
            return None
        return self._head(F.rms_norm(x, (self._width,), self._norm, self._eps))[:rows]

    def _attend(self, qkv: Tensor, stored: Tensor, start: int, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        """Rotates queries and keys, stores keys and values, attends; [n, heads · dim].

        The queries of all heads that share a key head become rows of one matrix, so that no key is repeated.
        """
        n, heads, group, dim = len(qkv), self._kv_heads, self._group, self._dim
        parts = qkv.view(n, heads * (group + 2), dim)
        turned = parts[:, : heads * (group + 1)]
        turned.copy_(torch.addcmul(turned * cos, torch.roll(turned, dim // 2, -1), sin))
        end = start + n
        stored[:, start:end] = parts[:, heads * group :].transpose(0, 1)
        queries = parts[:, : heads * group].view(n, heads, group, dim).permute(1, 2, 0, 3)
        queries = queries.reshape(1, heads, group * n, dim).to(self.kv_dtype)
        keys, values = stored[None, :heads, :end], stored[None, heads:, :end]
        found = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=self._scale)
        found = found.view(heads, group, n, dim).permute(2, 0, 1, 3)
        return found.reshape(n, heads * group * dim).to(self.dtype)

    def _bias(self, tail: Tensor, start: int) -> Tensor:
        """The attention bias, [1, 1, group · n, L + n]: 0 or minus infinity."""
        n = len(tail)
        bias = torch.zeros(self._group, n, start + n, dtype=self.kv_dtype, device=tail.device)
        bias[:, :, start:].masked_fill_(~tail, float("-inf"))
        return bias.view(1, 1, self._group * n, start + n)


def _pad(ids: Tensor, positions: Tensor, tail: Tensor, extra: int) -> tuple[Tensor, Tensor, Tensor]:
    """Adds rows that attend only to themselves and that no other row attends to."""
    n = len(ids)
    padded = torch.eye(n + extra, dtype=torch.bool, device=tail.device)
    padded[:n, :n] = tail
    return F.pad(ids, (0, extra)), F.pad(positions, (0, extra)), padded


def _rotary_table(rotary: Any, like: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine for every position, each [length, 1, dim]."""
    positions = torch.arange(length, device=like.device)[None]
    cos, sin = rotary(like[:1, :1], position_ids=positions)
    sin = sin.clone()
    sin[..., : sin.shape[-1] // 2].neg_()
    return cos[0].unsqueeze(1).contiguous(), sin[0].unsqueeze(1).contiguous()


def _take_layer(layer: Any, kernels: Kernels) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        norm_1=layer.input_layernorm.weight.detach(),
        qkv=_take([attention.q_proj, attention.k_proj, attention.v_proj], kernels),
        out=_take([attention.o_proj], kernels),
        norm_2=layer.post_attention_layernorm.weight.detach(),
        gate=_take([mlp.gate_proj], kernels),
        up=_take([mlp.up_proj], kernels),
        down=_take([mlp.down_proj], kernels),
    )


def _take(modules: list[Any], kernels: Kernels) -> Linear:
    """One product for the modules' outputs side by side; their own weights become views of it, or are freed."""
    weight, bias = modules[0].weight.detach(), modules[0].bias
    if len(modules) > 1:
        weight = torch.cat([module.weight.detach() for module in modules])
        bias = None if bias is None else torch.cat([module.bias.detach() for module in modules])
    if kernels == "plain":
        start = 0
        for module in modules if len(modules) > 1 else []:
            module.weight.data = weight[start : start + module.out_features]
            start += module.out_features
        return PlainLinear(weight, bias)
    packed = PackedLinear(weight, bias)
    for module in modules:
        module.weight.data = torch.empty(0, dtype=weight.dtype)
    return packed
