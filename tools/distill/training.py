"""Prunes the target and trains what is left to write as the target does. Embedding and head stay as they are."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from edgespec.core.errors import ModelError
from tools.distill.layers import rate
from tools.target_text import Batch, positions

STATES = 64.0
"""Weight of the distance of states. Every place has one, in prompts too, and it says more than a token does: a pruned
model is first of all far from the states for which the output embedding was made."""
OWN_TOKEN = 0.5
"""Weight of the target's own token in what is learnt; its distribution has the rest. Drafts are judged by the token."""
DECAY, BETAS, CLIP = 0.01, (0.9, 0.95), 1.0
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type`s whose layers can be taken out and written into a GGUF file."""
State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Lesson:
    """Text of the target, and what it gave its output embedding there."""

    batch: Batch
    states: Tensor
    """[n, P + G, width] bfloat16."""

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> Lesson:
        """From what `parts` returned. Raises KeyError."""
        return cls(Batch.of(parts), parts["states"])

    def parts(self) -> State:
        """As a file holds it."""
        return self.batch.parts() | {"states": self.states}

    def pieces(self, size: int) -> Iterator[Lesson]:
        """Of at most `size` completions each."""
        for at in range(0, len(self.states), size):
            yield Lesson.of({name: part[at : at + size].contiguous() for name, part in self.parts().items()})


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

    def __init__(self, student: Any, lessons: Sequence[Lesson], steps: int, highest: float, seed: int) -> None:
        self.student, self.step = student, 0
        self._lessons, self._steps, self._highest, self._seed = lessons, steps, highest, seed
        self._weights = trained(student)
        self._optimiser = torch.optim.AdamW(
            self._weights.values(), lr=highest, betas=BETAS, weight_decay=DECAY, foreach=False
        )

    def advance(self, share: float = 0.0) -> float:
        """One step; returns its loss before the step. `share`: of the time for training that is over."""
        share = max(share, (self.step + 0.5) / self._steps)
        for group in self._optimiser.param_groups:
            group["lr"] = rate(share, self._highest)
        found = loss(self.student, self._lessons[self._place()])
        self._optimiser.zero_grad(set_to_none=True)
        found.backward()
        torch.nn.utils.clip_grad_norm_(self._weights.values(), CLIP)
        self._optimiser.step()
        self.step += 1
        return float(found.detach())

    def _place(self) -> int:
        """Every lesson once, then again in another order."""
        turn, place = divmod(self.step, len(self._lessons))
        order = torch.randperm(len(self._lessons), generator=torch.Generator().manual_seed(self._seed + turn))
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


def loss(student: Any, lesson: Lesson) -> Tensor:
    """Cross-entropy and STATES times the distance of states.

    The former, in nats per written token, is to a mixture of the target's own token and its distribution over RANKS;
    the latter is smooth L1 in units of the states' root mean square.
    """
    device, batch = student.device, lesson.batch
    with _autocast(device):
        found = states(student, batch)
        log_probs = logits(student, batch, found).log_softmax(-1).gather(-1, batch.ranked.to(device))
    wanted = (1 - OWN_TOKEN) * batch.log_probs.to(device).softmax(-1)
    wanted[..., 0] += OWN_TOKEN
    written, real = batch.written.to(device), batch.mask[:, :-1].to(device)
    true = lesson.states[:, :-1].to(device)[real].float()
    size = true.pow(2).mean().sqrt()
    apart = F.smooth_l1_loss(found[real].float() / size, true / size)
    return STATES * apart - ((wanted * log_probs).sum(-1) * written).sum() / written.sum()


def states(student: Any, batch: Batch) -> Tensor:
    """[n, P + G - 1, width]: what the student gives its output embedding, at all places but the last."""
    device = student.device
    tokens, mask = batch.tokens[:, :-1].to(device), batch.mask[:, :-1].to(device)
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
        first, among = first + int(hits[..., 0].sum()), among + int(hits.sum())
        count += int(batch.written.sum())
    return first / max(count, 1), among / max(count, 1)


def _autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
