"""A draft of some of the target's layers: what is left is trained to write as the target does.

Embedding and head stay as they are. The draft is the target's GGUF file with fewer layers and other weights in them.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from numpy.typing import NDArray
from torch import Tensor

from cloud_gateway.parts.torch_engine.load import Loaded
from edgespec.core.errors import ConfigError, ModelError
from edgespec.llamacpp.convert import count_loaded_layers, requantise
from edgespec.models.drafts import FORMATS, Layer, block_count, copy_layers
from edgespec.shared.models import resolve_model
from edgespec.shared.vocabfiles import gguf_metadata, gguf_vocabulary
from edgespec_lab import options
from edgespec_lab.train import measure
from edgespec_lab.train.loop import Pupil, Row
from edgespec_lab.train.text import Batch, Lesson, positions

STATES = 64.0
"""Weight of the distance of states. Every place has one, in prompts too, and it says more than a token does: a pruned
model is first of all far from the states for which the output embedding was made."""
OWN_TOKEN = 0.5
"""Weight of the target's own token in what is learnt; its distribution has the rest. Drafts are judged by the token."""
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type`s whose layers can be taken out and written into a GGUF file."""
State = dict[str, Tensor]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=10, help="layers to keep: the first, and the rest evenly")
    parser.add_argument(
        "--keep", type=options.several(int), metavar="N,N...", help="which layers to keep instead, counted from 0"
    )
    parser.add_argument("--batch", type=options.number(int, 1, 4096), default=8, help="completions of a step")
    parser.add_argument("--format", choices=FORMATS, default="q4_0", help="of the draft's weights")


def pupil(args: argparse.Namespace, loaded: Loaded, lessons: Sequence[Lesson], held: Sequence[Lesson]) -> Pupil:
    """A pruned target. Raises ConfigError, ModelError."""
    source, kept = kept_of(args)
    student = pruned(loaded.model, kept)
    config = loaded.model.config
    pieces = [piece for lesson in lessons for piece in lesson.pieces(args.batch)]

    def finish() -> list[Row]:
        first, among = right(student, [lesson.batch for lesson in held])
        export(source, args.out, trained(student), kept, config, args.format)
        made = measure.table([args.out], [one for lesson in held for one in lesson.batch.sequences()], 20, args.threads)
        own = {"right in torch": round(first, 3), "in 4 in torch": round(among, 3)}
        return [made[0] | {"kept": ",".join(map(str, kept))} | own]

    return Pupil(trained(student), lambda step: loss(student, pieces[place(step, len(pieces), args.seed)]), finish)


def kept_of(args: argparse.Namespace) -> tuple[Path, tuple[int, ...]]:
    """The target's file and the layers to keep. Raises ConfigError, ModelError."""
    source = resolve_model(args.target)
    if not source.is_file():
        raise ConfigError(f"--target is {source}, but a draft is made of a GGUF file; name one.")
    total = block_count(source)
    return source, checked(args.keep, total) if args.keep else kept_layers(args.layers, total)


def place(step: int, count: int, seed: int) -> int:
    """Which of so many lessons a step learns: every one once, then again in another order."""
    turn, at = divmod(step, count)
    return int(torch.randperm(count, generator=torch.Generator().manual_seed(seed + turn))[at])


def kept_layers(count: int, total: int) -> tuple[int, ...]:
    """`count` layers of `total`: the first, then as evenly as possible from the second to the last.

    Without one of the first two, its first predictions are right 0.02 and 0.19 of the time, without any other early
    or middle layer 0.43 to 0.83 (dev/decisions/019). Raises ConfigError for an impossible count.
    """
    if not 1 <= count < total:
        raise ConfigError(f"--layers is {count}, but a target of {total} layers leaves a draft 1 to {total - 1}.")
    step = (total - 2) / max(count - 2, 1)
    return (0, *(1 + int(number * step + 0.5) for number in range(count - 1)))


def checked(kept: Sequence[int], total: int) -> tuple[int, ...]:
    """Layers named by the operator: each once, in order. Raises ConfigError."""
    if not kept or list(kept) != sorted(set(kept)) or not 0 <= kept[0] <= kept[-1] < total:
        raise ConfigError(f"--keep takes layers from 0 to {total - 1} in rising order, such as 0,1,{total - 1}.")
    return tuple(kept)


def pruned(target: Any, kept: Sequence[int]) -> Any:
    """A copy of the target with these layers. Raises ModelError for a family that is not of FAMILIES."""
    if target.config.model_type not in FAMILIES:
        raise ModelError(
            f"Layers of a {target.config.model_type} model cannot be taken out here; choose {', '.join(FAMILIES)}."
        )

    layers = target.model.layers
    target.model.layers = torch.nn.ModuleList()
    student = copy.deepcopy(target)
    target.model.layers = layers
    student.model.layers = torch.nn.ModuleList(copy.deepcopy(layers[place]) for place in kept)
    student.config.num_hidden_layers = len(kept)
    for place, layer in enumerate(student.model.layers):
        layer.self_attn.layer_idx = place
    for weights in student.parameters():
        weights.data = weights.data.float().clone()  # a mapped file's weights lie at odd addresses: other last bits
    for module in (student.get_input_embeddings(), student.get_output_embeddings()):
        module.weight.requires_grad_(False)

    return student.eval()


def trained(student: Any) -> State:
    """The weights that training changes, by their names; the model's own, no copies."""
    return {name: weight for name, weight in student.named_parameters() if weight.requires_grad}


def loss(student: Any, lesson: Lesson) -> Tensor:
    """Cross-entropy and STATES times the distance of states.

    The former, in nats per written token, is to a mixture of the target's own token and its distribution over RANKS;
    the latter is smooth L1 in units of the states' root mean square.
    """
    device = student.device
    batch = lesson.batch
    with _autocast(device):
        found = states(student, batch)
        log_probs = logits(student, batch, found).log_softmax(-1).gather(-1, batch.ranked.to(device))
    wanted = (1 - OWN_TOKEN) * batch.log_probs.to(device).softmax(-1)
    wanted[..., 0] += OWN_TOKEN
    written = batch.written.to(device)
    real = batch.mask[:, :-1].to(device)
    true = lesson.states[:, :-1].to(device)[real].float()
    size = true.pow(2).mean().sqrt()
    apart = F.smooth_l1_loss(found[real].float() / size, true / size)
    return STATES * apart - ((wanted * log_probs).sum(-1) * written).sum() / written.sum()


def states(student: Any, batch: Batch) -> Tensor:
    """[n, P + G - 1, width]: what the student gives its output embedding, at all places but the last."""
    device = student.device
    tokens = batch.tokens[:, :-1].to(device)
    mask = batch.mask[:, :-1].to(device)
    body = student.base_model(tokens, attention_mask=mask.long(), position_ids=positions(mask), use_cache=False)
    found: Tensor = body.last_hidden_state
    return found


def logits(student: Any, batch: Batch, found: Tensor) -> Tensor:
    """[n, G, vocabulary] float32: from the student's states, at the places of the completions."""
    made: Tensor = student.get_output_embeddings()(found[:, -batch.completions :]).float()
    return made


@torch.inference_mode()
def right(student: Any, batches: Iterable[Batch]) -> tuple[float, float]:
    """Shares of the target's tokens that are the student's first prediction, and among its first four."""
    first = among = count = 0
    for batch in batches:
        with _autocast(student.device):
            ranked = logits(student, batch, states(student, batch)).topk(4).indices
        hits = (ranked == batch.ranked[..., :1].to(ranked.device)) & batch.written[..., None].to(ranked.device)
        first = first + int(hits[..., 0].sum())
        among = among + int(hits.sum())
        count += int(batch.written.sum())

    return first / max(count, 1), among / max(count, 1)


def _autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def export(source: Path, out: Path, weights: Mapping[str, Tensor], kept: Sequence[int], config: Any, fmt: str) -> None:
    """Writes the layers `kept` of `source` with these weights, named as transformers does, in the format `fmt`.

    `out` appears only when llama.cpp loads it and its tokenizer is the source's. Raises ModelError.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=out.parent) as scratch:
            plain = Path(scratch) / "plain.gguf"
            made = Path(scratch) / out.name
            copy_layers(source, plain, [Layer(old) for old in kept], replaced=named(source, weights, len(kept), config))
            requantise(plain, made, fmt)
            if count_loaded_layers(made) != len(kept) or gguf_vocabulary(made).digest != gguf_vocabulary(source).digest:
                raise ModelError(f"The draft made from {source.name} has other layers or another tokenizer; report it.")
            made.replace(out)
    except OSError as error:
        raise ModelError(f"The draft {out} cannot be written: {error.strerror or error}.") from error


def named(source: Path, weights: Mapping[str, Tensor], layers: int, config: Any) -> dict[str, NDArray[np.float32]]:
    """The weights as a GGUF file of this architecture names and orders them."""
    import gguf

    architecture = str(gguf_metadata(source)["general.architecture"])
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], layers)
    found = {}
    for name, weight in weights.items():
        called = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if called is None:
            raise ModelError(f"{source.name} has no tensor for {name}, so this draft cannot be written as a GGUF file.")
        found[called] = _ordered(name, weight, config, turned=architecture == "llama")

    return found


def _ordered(name: str, weight: Tensor, config: Any, *, turned: bool) -> NDArray[np.float32]:
    """Llama's rotary embedding takes the two halves of a head in turns in a GGUF file, one after the other here."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    head_count = heads.get(name.split(".")[-2])
    if turned and head_count:
        weight = weight.reshape(head_count, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
    return np.ascontiguousarray(weight.detach().float().cpu().numpy())
