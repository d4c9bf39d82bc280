"""Prunes the target and trains what is left to write as the target does. Embedding and head stay as they are."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from edgespec.core.errors import ModelError
from tools.distill.layers import rate
from tools.target_text import Batch, positions

OWN_TOKEN = 0.5
"""Weight of the target's own token in what is learnt; its distribution has the rest. Drafts are judged by the token."""
DECAY, BETAS, CLIP = 0.01, (0.9, 0.95), 1.0
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type`s whose layers can be taken out and written into a GGUF file."""
State = dict[str, Tensor]


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


class Trainer:
    """Steps of AdamW over batches, in an order that depends on the seed only, so that a run can go on anywhere."""

    def __init__(self, student: Any, batches: Sequence[Batch], steps: int, highest: float, seed: int) -> None:
        self.student, self.step = student, 0
        self._batches, self._steps, self._highest, self._seed = batches, steps, highest, seed
        self._weights = trained(student)
        self._optimiser = torch.optim.AdamW(
            self._weights.values(), lr=highest, betas=BETAS, weight_decay=DECAY, foreach=False
        )

    def advance(self) -> float:
        """One step; returns its loss before the step, in nats per token."""
        for group in self._optimiser.param_groups:
            group["lr"] = rate(self.step, self._steps, self._highest)
        found = loss(self.student, self._batches[self._place()])
        self._optimiser.zero_grad(set_to_none=True)
        found.backward()
        torch.nn.utils.clip_grad_norm_(self._weights.values(), CLIP)
        self._optimiser.step()
        self.step += 1
        return float(found.detach())

    def _place(self) -> int:
        """Every batch once, then again in another order."""
        turn, place = divmod(self.step, len(self._batches))
        order = torch.randperm(len(self._batches), generator=torch.Generator().manual_seed(self._seed + turn))
        return int(order[place])

    def state(self) -> State:
        """AdamW's averages, by weight."""
        return {
            f"{name}.{part}": value
            for name, weight in self._weights.items()
            for part, value in self._optimiser.state[weight].items()
        }

    def resume(self, step: int, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Goes on after `step` steps, with what `trained` and `state` returned then."""
        self.step = step
        for name, weight in self._weights.items():
            weight.data.copy_(weights[name])
            self._optimiser.state[weight] = {
                part: state[f"{name}.{part}"].to(weight.device if part != "step" else "cpu")
                for part in ("step", "exp_avg", "exp_avg_sq")
            }


def loss(student: Any, batch: Batch) -> Tensor:
    """Cross-entropy to a mixture of the target's own token and its distribution over RANKS, nats per written token."""
    device = student.device
    log_probs = logits(student, batch).log_softmax(-1).gather(-1, batch.ranked.to(device))
    wanted = (1 - OWN_TOKEN) * batch.log_probs.to(device).softmax(-1)
    wanted[..., 0] += OWN_TOKEN
    written = batch.written.to(device)
    return -((wanted * log_probs).sum(-1) * written).sum() / written.sum()


def logits(student: Any, batch: Batch) -> Tensor:
    """[n, G, vocabulary]: the student's at the places of the completions, all read at once. bfloat16 on a GPU."""
    device = student.device
    tokens, mask = batch.tokens[:, :-1].to(device), batch.mask[:, :-1].to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        out = student(
            tokens, attention_mask=mask.long(), position_ids=positions(mask), use_cache=False,
            logits_to_keep=batch.completions,
        )  # fmt: skip
    found: Tensor = out.logits.float()
    return found


@torch.inference_mode()
def right(student: Any, batches: Iterable[Batch]) -> tuple[float, float]:
    """Shares of the target's tokens that are the student's first prediction, and among its first four."""
    first = among = count = 0
    for batch in batches:
        ranked = logits(student, batch).topk(4).indices
        hits = (ranked == batch.ranked[..., :1].to(ranked.device)) & batch.written[..., None].to(ranked.device)
        first, among = first + int(hits[..., 0].sum()), among + int(hits.sum())
        count += int(batch.written.sum())
    return first / max(count, 1), among / max(count, 1)
