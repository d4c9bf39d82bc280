"""The forward pass of the Llama family, written out: a third of the operations that the modules of transformers make.

One pass takes the rows of several slots: products are over all rows together, so that weights are read once, and
attention is computed slot by slot, each over its own keys and values.

`exact` makes the logits of a row independent of the rows beside it, of its own slot and of others, bit for bit, and so
verification in bfloat16 equal to plain decoding. Two things are needed on a CPU. Products take numbers of rows that
were tested on this machine (linear.py). And attention is computed in float64, whose rounding disappears when the
result is rounded to the model's numbers, so that the order of the keys (a tree's siblings lie between a row and its
ancestors) has no effect. Keys and values are then kept in float64 too, at 8 bytes a number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from cloud_gateway.parts.torch_engine.forward import LayerShape, Part
from cloud_gateway.parts.torch_engine.linear import BLOCK_ROWS, STEPS, PackedLinear, PlainLinear, RowTest, find_rows
from edgespec.core.errors import ModelError

Kernels = Literal["packed", "plain"]
SPARE_POSITIONS = 64
"""Positions beyond the context that rows of a tree may have."""
FAMILY = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"}
ROPES = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding whose angles depend on the position only, so that one table serves all passes."""


@dataclass(frozen=True, slots=True)
class _Span:
    """One part's rows in a pass, `first` to `end`, and what they attend to."""

    part: Part
    first: int
    end: int
    bias: Tensor
    """[1, 1, n · group, L + n]: 0 or minus infinity."""


@dataclass(frozen=True, slots=True)
class _Layer:
    norm_1: Tensor
    qkv: PlainLinear
    out: PlainLinear
    norm_2: Tensor
    gate: PlainLinear
    up: PlainLinear
    down: PlainLinear


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

    batched = True
    prompt_states = False

    def __init__(self, model: Any, context: int, *, kernels: Kernels = "packed", exact: bool = True) -> None:
        config = model.config
        body = model.model
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
        self._rows = RowTest(STEPS)
        self.hidden: Sequence[Tensor] = ()
        self.shapes: Sequence[LayerShape] = [LayerShape(self._kv_heads, self._dim, self._dim)] * len(body.layers)
        self._embedding = body.embed_tokens.weight.detach()
        self._norm = body.norm.weight.detach()
        self._cos, self._sin = _rotary_table(body.rotary_emb, self._embedding, context + SPARE_POSITIONS)
        with torch.inference_mode():
            self._layers = [_take_layer(layer, kernels) for layer in body.layers]
            self._head = _take([model.lm_head], kernels)

    def keeping(self, layers: Sequence[int]) -> LlamaForward:
        """The same weights with these layers only, counted from 0, to draft with: keys and values in the model's dtype.

        Raises ModelError where they do not rise, are not there, or are all there are.
        """
        count = len(self._layers)
        if (
            not 0 < len(layers) < count
            or list(layers) != sorted(set(layers))
            or not 0 <= layers[0] <= layers[-1] < count
        ):
            raise ModelError(
                f"`local_draft.layers` takes some of the target's {count} layers, from 0 to {count - 1} and in rising "
                "order; `python -m edgespec_lab.train layers` finds good ones."
            )

        kept = copy.copy(self)
        kept._layers = [self._layers[index] for index in layers]
        kept.shapes = self.shapes[: len(layers)]
        kept.prompt_states = False
        kept.give_up_exact()
        return kept

    @torch.inference_mode()
    def find_rows(self, threads: Sequence[int]) -> RowTest:
        """Tests on this machine which numbers of rows are exact, with these numbers of threads; takes them."""
        self._rows = find_rows(self._products(), threads)
        return self._rows

    def give_up_exact(self) -> None:
        """Computes as without `exact` from now on; to be called before any slot is made."""
        self.exact = False
        self.kv_dtype = self.dtype

    def __call__(self, parts: Sequence[Part], *, head: bool = True) -> list[Tensor]:
        spans = self._spans(parts)
        rows = spans[-1].end
        spare = self._rows.padded(rows) - rows if self.exact else 0
        ids = F.pad(torch.cat([part.ids for part in parts]), (0, spare))
        positions = F.pad(torch.cat([part.positions for part in parts]), (0, spare))

        # [n, 1, dim]: one angle per row for all heads. The lower half's sine is negated, so that rotating is a roll.
        cos = self._cos[positions]
        sin = self._sin[positions]
        x = F.embedding(ids, self._embedding)
        for index, layer in enumerate(self._layers):
            h = F.rms_norm(x, (self._width,), layer.norm_1, self._eps)
            attended = self._attend(self._product(layer.qkv, h), index, spans, cos, sin)
            x = self._product(layer.out.plus, attended, x)
            h = F.rms_norm(x, (self._width,), layer.norm_2, self._eps)
            x = self._product(layer.down.plus, self._product(layer.up.times, h, self._product(layer.gate.silu, h)), x)
        if not head and not self.prompt_states:
            return []

        x = F.rms_norm(x, (self._width,), self._norm, self._eps)
        self.hidden = [x[span.first : span.end] for span in spans]
        if not head:
            return []

        logits = self._product(self._head, x)
        return [logits[span.first : span.end] for span in spans]

    def _product(self, product: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """A product of all rows, under `exact` a block at a time."""
        if not self.exact or len(rows[0]) <= BLOCK_ROWS:
            return product(*rows)
        return torch.cat([product(*block) for block in zip(*(all_.split(BLOCK_ROWS) for all_ in rows), strict=True)])

    def _products(self) -> Iterator[tuple[str, PlainLinear]]:
        """Those of a pass, by their kind as in linear.py."""
        for layer in self._layers:
            yield from zip(
                ("plain", "plus", "silu", "times", "plus"), (layer.qkv, layer.out, layer.gate, layer.up, layer.down)
            )
        yield "plain", self._head

    def _spans(self, parts: Sequence[Part]) -> list[_Span]:
        """Where each part's rows lie; makes room for their keys and values."""
        spans: list[_Span] = []
        for part in parts:
            part.kv.reserve(len(part.ids))
            first = spans[-1].end if spans else 0
            spans.append(_Span(part, first, first + len(part.ids), self._bias(part.tail, part.kv.length)))
        return spans

    def _attend(self, qkv: Tensor, layer: int, spans: Sequence[_Span], cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates queries and keys, stores keys and values, attends; [n, heads · dim].

        The queries of all heads that share a key head become rows of one matrix, so that no key is repeated. Rows
        behind the last span attend to nothing.
        """
        n = len(qkv)
        heads = self._kv_heads
        group = self._group
        dim = self._dim
        parts = qkv.view(n, heads * (group + 2), dim)
        turned = parts[:, : heads * (group + 1)]
        turned.copy_(torch.addcmul(turned * cos, torch.roll(turned, dim // 2, -1), sin))
        stored = parts[:, heads * group :].transpose(0, 1)
        queries = parts[:, : heads * group].view(n, heads, group, dim).transpose(0, 1).to(self.kv_dtype)
        queries = queries.reshape(1, heads, n * group, dim)
        found = torch.zeros_like(queries)
        for span in spans:
            kv = span.part.kv
            rows = slice(span.first * group, span.end * group)
            entries = kv.layers[layer]
            end = kv.length + span.end - span.first
            entries[:, kv.length : end] = stored[:, span.first : span.end]
            found[:, :, rows] = F.scaled_dot_product_attention(
                queries[:, :, rows],
                entries[None, :heads, :end],
                entries[None, heads:, :end],
                attn_mask=span.bias,
                scale=self._scale,
            )
        found = found.view(heads, n, group, dim).transpose(0, 1)
        return found.reshape(n, heads * group * dim).to(self.dtype)

    def _bias(self, tail: Tensor, start: int) -> Tensor:
        """The attention bias of one slot, [1, 1, n · group, L + n]: 0 or minus infinity."""
        n = len(tail)
        bias = torch.zeros(n, self._group, start + n, dtype=self.kv_dtype, device=tail.device)
        bias[:, :, start:].masked_fill_(~tail[:, None], float("-inf"))
        return bias.view(1, 1, n * self._group, start + n)


def _rotary_table(rotary: Any, like: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine for every position, each [length, 1, dim]."""
    positions = torch.arange(length, device=like.device)[None]
    cos, sin = rotary(like[:1, :1], position_ids=positions)
    sin = sin.clone()
    sin[..., : sin.shape[-1] // 2].neg_()
    return cos[0].unsqueeze(1).contiguous(), sin[0].unsqueeze(1).contiguous()


def _take_layer(layer: Any, kernels: Kernels) -> _Layer:
    attention = layer.self_attn
    mlp = layer.mlp
    return _Layer(
        norm_1=layer.input_layernorm.weight.detach(),
        qkv=_take([attention.q_proj, attention.k_proj, attention.v_proj], kernels),
        out=_take([attention.o_proj], kernels),
        norm_2=layer.post_attention_layernorm.weight.detach(),
        gate=_take([mlp.gate_proj], kernels),
        up=_take([mlp.up_proj], kernels),
        down=_take([mlp.down_proj], kernels),
    )


def _take(modules: list[Any], kernels: Kernels) -> PlainLinear:
    """One product for the modules' outputs side by side; their own weights become views of it, or are freed."""
    weight = modules[0].weight.detach()
    bias = modules[0].bias
    if len(modules) > 1:
        weight = torch.cat([module.weight.detach() for module in modules])
        if bias is None:
            bias = None
        else:
            bias = torch.cat([module.bias.detach() for module in modules])
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
