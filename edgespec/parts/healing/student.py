"""The draft as a student: the forward pass of its family in torch, over the tensors of its GGUF file.

The projections of a layer are trained: each is a base, which stays as it is, and an update of low rank. The forward
pass uses the sum as llama.cpp will read it, rounded to the format of the file. The gradient passes the rounding as if
it were not there (straight-through estimator; Bengio, Léonard, Courville, 2013). A model that is trained first and
rounded afterwards loses what it learnt: an update is smaller than the steps of four bits.

transformers was not taken. It renames and reorders the tensors of a GGUF file, which would have to be undone for each
family, and it refuses scaled rotary embeddings. The families here differ in four places, and `require_same` compares
the result with llama.cpp before anything is trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from edgespec.core.errors import ModelError
from edgespec.llamacpp.context import Context, Row
from edgespec.parts.healing.formats import FORMATS, rounded
from edgespec.shared.vocabfiles import gguf_metadata

NEIGHBOURS = "neighbours"
HALVES = "halves"
ROTATIONS: Mapping[str, str] = {"llama": NEIGHBOURS, "qwen2": HALVES, "qwen3": HALVES}
"""The families, by `general.architecture`, and which two elements of a head the rotary embedding turns together."""
PROJECTION = re.compile(r"blk\.\d+\.(attn_q|attn_k|attn_v|attn_output|ffn_gate|ffn_up|ffn_down)\.weight\Z")
"""The names of the tensors that are trained."""
_OTHERS = re.compile(
    r"(token_embd|output|output_norm|rope_freqs|blk\.\d+\.(attn_norm|ffn_norm|attn_q_norm|attn_k_norm))\.weight\Z"
    r"|blk\.\d+\.attn_(q|k|v|output)\.bias\Z"
)
MAX_DIFFERENCE = 0.5
"""Standard deviation of the difference between logits here and in llama.cpp, in standard deviations of llama.cpp's. At
most 0.17 with the demo's model in Q4_0, because llama.cpp also rounds the inputs of a product. Unrelated logits differ
by 1.4."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes and constants of a file that the forward pass needs."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    epsilon: float
    rotary_base: float
    rotation: str

    @classmethod
    def of(cls, path: Path) -> Dimensions:
        """Raises ModelError for a family that is not computed here."""
        metadata = gguf_metadata(path)
        family = str(metadata.get("general.architecture"))
        if family not in ROTATIONS:
            raise ModelError(
                f"{path.name} is of the family {family}, which `edgespec learn` does not compute; choose a draft of "
                f"{', '.join(ROTATIONS)}."
            )

        scaling = metadata.get(f"{family}.rope.scaling.type", "none")
        if scaling != "none":
            raise ModelError(
                f"{path.name} scales its rotary embedding ({scaling}), which `edgespec learn` does not compute; choose "
                "another draft."
            )

        heads = metadata[f"{family}.attention.head_count"]
        return cls(
            layers=metadata[f"{family}.block_count"],
            heads=heads,
            kv_heads=metadata.get(f"{family}.attention.head_count_kv", heads),
            head_size=metadata.get(f"{family}.attention.key_length") or metadata[f"{family}.embedding_length"] // heads,
            epsilon=metadata[f"{family}.attention.layer_norm_rms_epsilon"],
            rotary_base=metadata.get(f"{family}.rope.freq_base", 10_000.0),
            rotation=ROTATIONS[family],
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a GGUF file, dequantised, and the format of each."""

    tensors: Mapping[str, Tensor]
    """float32; matrices are [out, in]."""
    formats: Mapping[str, str]
    """In lower case."""

    def projections(self) -> list[str]:
        """The names of what is trained, in the order of the file."""
        return [name for name in self.tensors if PROJECTION.match(name)]


def read_weights(path: Path) -> Weights:
    """Raises ModelError for a file that is not whole, or has tensors that no family here has."""
    import gguf

    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:  # what damaged files make it raise
        raise ModelError(f"{path} is not a whole GGUF file: {error}.") from error

    tensors: dict[str, Tensor] = {}
    formats: dict[str, str] = {}
    for tensor in reader.tensors:
        if not PROJECTION.match(tensor.name) and not _OTHERS.match(tensor.name):
            raise ModelError(
                f"{path.name} has a tensor {tensor.name}, which `edgespec learn` does not compute; choose a draft "
                "without experts."
            )
        values = gguf.quants.dequantize(
            tensor.data,
            tensor.tensor_type,
        )
        tensors[tensor.name] = torch.from_numpy(
            np.array(
                values,
                np.float32,
            )
        )
        formats[tensor.name] = tensor.tensor_type.name.lower()

    return Weights(tensors, formats)


class Projection:
    """A matrix [out, in]: a fixed base, and a trained update of low rank."""

    def __init__(
        self,
        base: Tensor,
        format_name: str,
        rank: int,
        generator: torch.Generator,
    ) -> None:
        self.base = base
        self.format_name = format_name
        self.down = (
            torch.randn(
                rank,
                base.shape[1],
                generator=generator,
            )
            / base.shape[1] ** 0.5
        )
        self.up = torch.zeros(
            base.shape[0],
            rank,
        )
        self.down.requires_grad_()
        self.up.requires_grad_()

    def whole(self) -> Tensor:
        """[out, in] float32: base and update, before they are rounded."""
        return torch.addmm(
            self.base,
            self.up.detach(),
            self.down.detach(),
        )

    def as_read(self) -> Tensor:
        """[out, in] float32: as llama.cpp will read it."""
        return rounded(self.whole(), self.format_name)


class _Product(torch.autograd.Function):
    """x W^T with W as llama.cpp reads it; the gradient reaches the two factors of the update, not W itself.

    The gradient of W would take a third of a step's time, and have as many elements as the model.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        up: Tensor,
        down: Tensor,
    ) -> Tensor:
        """x [n, in], weight [out, in], up [out, rank], down [rank, in] -> [n, out] in float32."""
        x = x.to(weight.dtype)
        ctx.save_for_backward(x, weight, up, down)
        return (x @ weight.T).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        """Returns the gradients of the arguments of `forward`."""
        x, weight, up, down = ctx.saved_tensors
        gradient = gradients[0].to(weight.dtype)

        of_up = gradient.T @ (x @ down.to(weight.dtype).T)
        of_down = (gradient @ up.to(weight.dtype)).T @ x
        return (gradient @ weight).float(), None, of_up.float(), of_down.float()


class Student:
    """The draft, of which `parameters` are trained."""

    def __init__(
        self, shape: Dimensions, draft: Weights, base: Weights, formats: Mapping[str, str], rank: int, seed: int
    ) -> None:
        """`base`: the file whose projections are the start; `formats`: of the projections, as they will be written."""
        generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self._fixed = {name: tensor for name, tensor in draft.tensors.items() if not PROJECTION.match(name)}
        self.projections = {
            name: Projection(
                base.tensors[name],
                formats[name],
                rank,
                generator,
            )
            for name in draft.projections()
        }
        self._dtype = product_dtype()
        head = self._fixed.get(
            "output.weight",
            self._fixed["token_embd.weight"],
        )
        self._head = head.to(self._dtype)
        self._read: dict[str, Tensor] = {}
        self.refresh()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The factors of the updates, by the tensor's name and `.up` or `.down`."""
        found: dict[str, Tensor] = {}
        for name, projection in self.projections.items():
            found[f"{name}.up"] = projection.up
            found[f"{name}.down"] = projection.down
        return found

    def refresh(self) -> None:
        """Rounds the projections again, after the parameters have changed."""
        for name, projection in self.projections.items():
            self._read[name] = projection.as_read().to(self._dtype)

    def logits(
        self,
        sequences: Sequence[Tensor],
        wanted: Tensor,
    ) -> Tensor:
        """[m, vocabulary] float32: at the m places `wanted` (bool [n]) of all n tokens of the sequences."""
        lengths = [len(sequence) for sequence in sequences]
        rotation = self._rotation(lengths)
        x = self._fixed["token_embd.weight"][torch.cat(list(sequences))]

        for number in range(self.shape.layers):
            layer = f"blk.{number}"
            x = x + self._attention(
                layer,
                self._normed(x, f"{layer}.attn_norm"),
                rotation,
                lengths,
            )
            x = x + self._gated(
                layer,
                self._normed(x, f"{layer}.ffn_norm"),
            )

        states = self._normed(
            x[wanted],
            "output_norm",
        ).to(self._dtype)
        return (states @ self._head.T).float()

    def _attention(
        self,
        layer: str,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        lengths: Sequence[int],
    ) -> Tensor:
        shape = self.shape
        queries = self._product(
            x,
            f"{layer}.attn_q",
        ).view(
            -1,
            shape.heads,
            shape.head_size,
        )
        keys = self._product(
            x,
            f"{layer}.attn_k",
        ).view(
            -1,
            shape.kv_heads,
            shape.head_size,
        )
        values = self._product(
            x,
            f"{layer}.attn_v",
        ).view(
            -1,
            shape.kv_heads,
            shape.head_size,
        )
        if f"{layer}.attn_q_norm.weight" in self._fixed:
            queries = self._normed(queries, f"{layer}.attn_q_norm")
            keys = self._normed(keys, f"{layer}.attn_k_norm")

        queries = _turned(queries, rotation, shape.rotation)
        keys = _turned(keys, rotation, shape.rotation)

        # Each sequence attends to itself: no padding, and no mask over all tokens.
        parts = [part.split(list(lengths)) for part in (queries, keys, values)]
        mixed = [
            _attended(*sequence)
            for sequence in zip(
                *parts,
                strict=True,
            )
        ]
        return self._product(torch.cat(mixed), f"{layer}.attn_output")

    def _gated(
        self,
        layer: str,
        x: Tensor,
    ) -> Tensor:
        gate = F.silu(self._product(x, f"{layer}.ffn_gate"))
        return self._product(
            gate * self._product(x, f"{layer}.ffn_up"),
            f"{layer}.ffn_down",
        )

    def _product(
        self,
        x: Tensor,
        name: str,
    ) -> Tensor:
        projection = self.projections[f"{name}.weight"]
        product: Tensor = _Product.apply(
            x,
            self._read[f"{name}.weight"],
            projection.up,
            projection.down,
        )
        bias = self._fixed.get(f"{name}.bias")
        if bias is not None:
            return product + bias
        return product

    def _normed(
        self,
        x: Tensor,
        name: str,
    ) -> Tensor:
        return F.rms_norm(
            x,
            x.shape[-1:],
            self._fixed[f"{name}.weight"],
            self.shape.epsilon,
        )

    def _rotation(self, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each token's angles, [n, 1, head size / 2] each."""
        size = self.shape.head_size
        frequencies = self.shape.rotary_base ** (
            -torch.arange(
                0,
                size,
                2,
                dtype=torch.float64,
            )
            / size
        )
        if "rope_freqs.weight" in self._fixed:
            frequencies = frequencies / self._fixed["rope_freqs.weight"]

        positions = torch.cat(
            [
                torch.arange(
                    length,
                    dtype=torch.float64,
                )
                for length in lengths
            ]
        )
        angles = torch.outer(
            positions,
            frequencies,
        )[:, None]
        return angles.cos().float(), angles.sin().float()


def _turned(
    x: Tensor,
    rotation: tuple[Tensor, Tensor],
    kind: str,
) -> Tensor:
    """x [n, heads, size] turned by the angles of its places."""
    cosine, sine = rotation
    if kind == NEIGHBOURS:
        first = x[..., 0::2]
        second = x[..., 1::2]
    else:
        first, second = x.chunk(2, -1)

    turned = (first * cosine - second * sine, second * cosine + first * sine)
    if kind == NEIGHBOURS:
        return torch.stack(
            turned,
            -1,
        ).flatten(-2)
    return torch.cat(turned, -1)


def _attended(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """[n, heads * size]: causal attention within one sequence; each is [n, heads, size]."""
    mixed = F.scaled_dot_product_attention(
        queries.transpose(0, 1),
        keys.transpose(0, 1),
        values.transpose(0, 1),
        is_causal=True,
        enable_gqa=True,
    )
    return mixed.transpose(0, 1).flatten(1)


def product_dtype() -> torch.dtype:
    """What products are computed in: bfloat16 if this processor has instructions for it."""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported() and torch.cpu._is_avx512_bf16_supported():
        return torch.bfloat16
    return torch.float32


def written_formats(
    draft: Path,
    weights: Weights,
    chosen: str | None,
) -> dict[str, str]:
    """The format of each projection in the file that will be written. Raises ModelError for one that is not trained."""
    found: dict[str, str] = {}
    for name in weights.projections():
        found[name] = chosen or weights.formats[name]
        if found[name] not in FORMATS:
            raise ModelError(
                f"{draft.name} has weights in {found[name]}, in which nothing can be trained: choose another by "
                f"--format ({', '.join(FORMATS)})."
            )

    return found


def alike(draft: Weights, other: Weights) -> bool:
    """Whether another file has the same projections, so that they may be the base of the draft's."""
    names = draft.projections()
    if names != [name for name in names if name in other.tensors]:
        return False
    if len(other.projections()) != len(names):
        return False
    return all(draft.tensors[name].shape == other.tensors[name].shape for name in names)


def require_same(
    student: Student,
    path: Path,
    tokens: Sequence[int],
) -> float:
    """The difference between the student and llama.cpp over some tokens, as of MAX_DIFFERENCE.

    Raises ModelError if it is larger: the file is of a family, or has a setting, that is computed otherwise.
    """
    with torch.no_grad():
        ours = student.logits(
            [torch.tensor(tokens)],
            torch.ones(
                len(tokens),
                dtype=torch.bool,
            ),
        ).numpy()
    context = Context(
        path,
        cells=256,
        sequences=1,
        batch=256,
        threads=1,
        outputs=len(tokens),
    )
    context.decode(
        [
            Row(
                token,
                place,
                (0,),
                True,
            )
            for place, token in enumerate(tokens)
        ]
    )
    theirs = np.array(context.all_logits(len(tokens)))
    context.close()

    # A constant that is added to all logits of a row changes no probability.
    difference = ours - theirs
    apart = difference.std(1) / theirs.std(1)
    worst = float(apart.max())
    if not worst <= MAX_DIFFERENCE:
        raise ModelError(
            f"{path.name} is computed otherwise by llama.cpp than by `edgespec learn` (by {worst:.2f} of the spread of "
            "its logits), so it cannot be trained here; choose another draft."
        )

    return worst


def trained_bytes(student: Student) -> Iterator[tuple[str, Tensor, str]]:
    """Name, weights before rounding, and format of each projection."""
    for name, projection in student.projections.items():
        yield name, projection.whole(), projection.format_name
