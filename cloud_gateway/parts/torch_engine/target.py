"""The torch engine: any causal model of transformers, on a CPU or on CUDA, verifying a whole tree in one pass."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.settings import DEFAULTS
from cloud_gateway.models.target_model import Pass, Work
from cloud_gateway.models.target_model.inside import StateReader
from cloud_gateway.models.target_model.slots import (
    MIN_LOGIT,
    SELF_TEST_LIMIT,
    HostEntropy,
    SlotTable,
    argmax_on_host,
    check_self_test,
    groups,
)
from cloud_gateway.parts.torch_engine.forward import Forward, HfForward, Part, SlotKv, wait_for
from cloud_gateway.parts.torch_engine.kept import KeptLayers
from cloud_gateway.parts.torch_engine.linear import RowTest, can_pack
from cloud_gateway.parts.torch_engine.llama_forward import Kernels, LlamaForward, is_plain_llama
from edgespec.core.errors import ModelError
from edgespec.shared.threads import ONE_CORE_LEFT, FixedRule, ThreadRule, fixed_if

log = logging.getLogger(__name__)

MAX_PASS_ROWS = 1024
"""Rows of one pass, unless one tree has more: their logits are 0.3 GB with 150,000 tokens in bf16."""
LENGTH_ROPES = {"dynamic", "longrope"}
"""Kinds of rotary embedding whose angles depend on the last position of the pass, and so on candidates."""
MAX_DEPTH = 64
"""Positions behind the context that rows of a tree may have, as `policy.depth` allows."""
MAX_LONE_ROWS = 32
"""Rows that a pass over one may be padded to if `exact` need not be: in bfloat16 such a pass takes twice its time."""
FLOAT32_LIMIT = 0.01
"""`SELF_TEST_LIMIT` of a model in float32."""


class TorchVerified:
    """One tree's result; the logits stay on the device until a row is read."""

    def __init__(self, logits: Tensor, entropy: HostEntropy) -> None:
        """`logits`: [n, vocab_size]; `entropy`: the target's, for logits on the host."""
        self._logits = logits
        self._entropy = entropy
        self.argmax: Sequence[int] = _argmax(logits)

    def entropy(self, row: int) -> float:
        """Nats, after one row."""
        if self._logits.device.type == "cpu":
            return self._entropy(self.logits(row), self.argmax[row])
        return entropy_on_device(self._logits[row])

    def logits(self, row: int) -> NDArray[np.float32]:
        """Raw logits after one row, [vocab_size]."""
        found: NDArray[np.float32] = self._logits[row].float().cpu().numpy()
        return found


class TorchTarget:
    """A target model with KV slots (the Protocol `cloud_gateway.models.target_model.Target`).

    A round takes one forward pass over all requests' trees, or one for each if transformers' own code computes it.
    Keys and values are written once and never copied, except for those of accepted rows with rejected siblings before
    them.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int = DEFAULTS.slots,
        context: int = DEFAULTS.context,
        kv_tokens: int | None = None,
        threads: int = 0,
        thread_rule: ThreadRule = ONE_CORE_LEFT,
        kernels: Kernels = "packed",
        exact: bool = True,
        max_lone_rows: int = MAX_LONE_ROWS,
        eos: frozenset[int] | None = None,
    ) -> None:
        """`model`: a causal model of transformers on its device; the caller must not use it afterwards.

        `kv_tokens`: entries of all slots together, None for any number; old and new ones exist while a slot's buffers
        grow. `threads`: of the whole process, 0 for as many as `thread_rule` chooses, or all on a GPU.
        `kernels` and `exact` choose how the Llama family is computed on a CPU (llama_forward.py); not exactly if a row
        alone would be computed as more than `max_lone_rows`. Raises ModelError if the model cannot verify trees.
        """
        rule = fixed_if(threads, thread_rule)
        if not threads and model.device.type != "cpu":
            rule = FixedRule(len(os.sched_getaffinity(0)))
        counts = rule.counts()
        torch.set_num_threads(counts[0])  # until it is measured: others may use the cores
        self.context = min(context, _longest(model.config.get_text_config()) or context)
        self.slots = slots
        self.kv_tokens = kv_tokens or sys.maxsize
        self.vocab_size: int
        self.hidden_size: int
        self.vocab_size, self.hidden_size = model.get_output_embeddings().weight.shape
        self.embedding: Tensor = model.get_input_embeddings().weight.detach()
        self.eos = _eos(model) if eos is None else eos
        self.device = torch.device(model.device)
        self.forward = _forward(model, self.context, kernels, exact)
        self._entropy = HostEntropy()
        self._table = SlotTable(slots, capacity=self.kv_tokens)
        self._pending: dict[int, tuple[FlatTree, Tensor]] = {}
        """By slot: the tree last verified, and its rows' hidden states."""
        self._hidden: dict[int, Tensor] = {}
        """By slot: the state of the row kept last, [hidden_size]."""
        self._reader: StateReader | None = None
        self.passes: Sequence[Pass] = ()
        self.inexact_because: str
        """Why a tree's logits may differ from those of its paths alone in their last bits; empty: they do not."""
        usable = self._settle(counts, max_lone_rows)
        self._kv = [self._new_kv() for _ in range(slots)]
        self._threads = rule.use(usable, torch.set_num_threads, "target")
        self._threads.begin(self._try_a_pass)

    @property
    def exact(self) -> bool:
        """Whether a tree's logits equal those of its paths alone, bit for bit: by design and in the self-test."""
        return not self.inexact_because

    @torch.inference_mode()
    def open(self, tokens: Sequence[int], scope: bytes = b"", room: int = 0) -> tuple[int, int]:
        """See `Target.open`; the beginning may also be copied from another slot, even one in use."""
        claim = self._table.claim(tokens, scope, room)
        self._forget(claim.evicted)
        donor = self._kv[claim.donor]
        if self._kv[claim.slot].capacity > (room or sys.maxsize):  # larger than what it may take now
            self._kv[claim.slot] = self._new_kv()
        kv = self._kv[claim.slot]
        kv.limit = room or self.context
        if donor is kv:
            kv.length = claim.reused
        else:
            kv.copy_from(donor, claim.reused)
        if self._reader is not None:
            self._reader.open(claim.slot, claim.donor, claim.reused)
        return claim.slot, claim.reused

    def resize(self, slot: int, room: int) -> None:
        self._forget(self._table.resize(slot, room))
        self._kv[slot].limit = room

    def _forget(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._kv[slot] = self._new_kv()
            if self._reader is not None:
                self._reader.drop(slot)

    @torch.inference_mode()
    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        if not tokens:
            return

        kv = self._kv[slot]
        with self._threads.watched(len(tokens)):
            self.forward([Part.chain(kv, tokens, self.device)], head=False)
            wait_for(self.device)
        if self._reader is not None:
            self._reader.add(slot, self.forward.hidden[0])
        kv.length += len(tokens)
        self._table.extend(slot, tokens)

    @torch.inference_mode()
    def verify(self, batch: Sequence[Work]) -> Sequence[TorchVerified]:
        """One forward pass over all trees; a few if they have more rows than MAX_PASS_ROWS."""
        results: list[TorchVerified] = []
        passes: list[Pass] = []
        rows = MAX_PASS_ROWS if self.forward.batched else 1
        for group in groups([(len(work.tree), 0) for work in batch], rows, 0):
            began = time.perf_counter()
            works = [batch[index] for index in group]
            with self._threads.watched(sum(len(work.tree) for work in works)):
                logits = self._logits([(self._kv[work.slot], work.tree) for work in works])
            states = zip(works, self.forward.hidden, strict=True)
            self._pending.update((work.slot, (work.tree, hidden)) for work, hidden in states)
            results += [TorchVerified(part, self._entropy) for part in logits]
            passes.append(Pass(sum(len(work.tree) for work in works), time.perf_counter() - began))
        self.passes = passes
        return results

    @torch.inference_mode()
    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """Keeps these rows of the tree last verified in this slot."""
        tree, hidden = self._pending.pop(slot)
        if self._reader is not None:
            self._reader.add(slot, hidden[list(rows)])
        self._hidden[slot] = hidden[rows[-1]].clone()
        self._kv[slot].keep(rows)
        self._table.extend(slot, [tree.tokens[row] for row in rows])

    def show_states(self, reader: StateReader) -> None:
        """This reader alone is given the states of committed tokens. To be called before the first `open`."""
        self._reader = reader
        self.forward.prompt_states = True

    def held(self, slot: int) -> Sequence[int]:
        """Tokens whose keys and values are in this slot."""
        return self._table.held(slot)

    def hidden(self, slot: int) -> Tensor | None:
        """The input of the output embedding for the row that was kept last in this slot, [hidden_size]."""
        return self._hidden.get(slot)

    def keeping(self, layers: Sequence[int], lines: int) -> KeptLayers:
        """See `LayersTarget`; only the Llama family can."""
        if not isinstance(self.forward, LlamaForward):
            raise ModelError(
                "This target cannot be its own draft, only one of the Llama family can; name a GGUF draft."
            )
        return KeptLayers(self.forward.keeping(layers), self.device, self.context, lines)

    def close(self, slot: int) -> None:
        self._pending.pop(slot, None)
        self._hidden.pop(slot, None)
        self._table.release(slot, self._kv[slot].capacity)

    def _logits(self, trees: Sequence[tuple[SlotKv, FlatTree]]) -> list[Tensor]:
        """Logits of each tree's rows, [n, vocab_size]."""
        return self.forward([self._part(kv, tree) for kv, tree in trees])

    def _part(self, kv: SlotKv, tree: FlatTree) -> Part:
        ids = torch.tensor(tree.tokens, device=self.device)
        positions = torch.tensor(tree.depths, device=self.device) + kv.length
        return Part(kv, ids, positions, torch.from_numpy(tree.mask()).to(self.device))

    def _new_kv(self) -> SlotKv:
        return SlotKv(self.forward.shapes, self.forward.kv_dtype, self.device, self.context)

    @torch.inference_mode()
    def idle(self) -> None:
        """To be called when no request waits: may try other numbers of threads."""
        self._threads.idle(self._try_a_pass)

    @torch.inference_mode()
    def _try_a_pass(self) -> None:
        self._logits([(self._new_kv(), FlatTree([0], [-1], [0]))])

    def _settle(self, threads: Sequence[int], max_lone_rows: int) -> Sequence[int]:
        """Tests the model, which is computed exactly only if that holds here; returns the numbers of threads to use."""
        forward = self.forward
        because = "the engine computes this model as transformers does"
        if isinstance(forward, LlamaForward):
            because = "it was not asked for, or the model is not on a CPU"
            if forward.exact:
                began = time.perf_counter()
                rows = forward.find_rows(threads)
                log.info("products tested in %.1f s, exact: %s", time.perf_counter() - began, rows)
                because = _too_costly(rows, max_lone_rows)
                threads = [count for count in threads if because or count <= rows.threads]
            if because:
                forward.give_up_exact()
        torch.set_num_threads(threads[0])
        if self._self_test(self.embedding.dtype) > 0 and not because and isinstance(forward, LlamaForward):
            because = "a tree's logits differ from those of its paths alone, though its products are exact"
            forward.give_up_exact()
        self.inexact_because = because
        return threads

    @torch.inference_mode()
    def _self_test(self, dtype: torch.dtype) -> float:
        """Verifies small trees whole and path by path; returns the largest difference of the logits, relative.

        The whole trees share a pass, after prompts of several lengths; paths are taken a row at a time, after prompts
        that were read in other pieces. Raises ModelError.
        """
        parents = [-1, 0, 0, 2, 1, 3] + [0] * 12
        depths = [0, 1, 1, 2, 2, 3] + [1] * 12
        step = max(self.vocab_size // 7, 1)
        tree = FlatTree([(1 + i * step) % self.vocab_size for i in range(len(parents))], parents, depths)
        prompts = (0, 5, 17, 70) if self.forward.batched else (0,)
        whole = self._logits([(self._read(prompt, prompt), tree) for prompt in prompts])
        errors: list[float] = []
        for prompt, path, logits in zip(prompts, ([0, 2, 3, 5], [0, 1, 4], [0, 17], [0, 9]), whole, strict=False):
            kv = self._read(prompt, 7)
            expected = logits.float()
            for row in path:
                alone = self._logits([(kv, FlatTree([tree.tokens[row]], [-1], [0]))])[0][0].float()
                kv.keep([0])
                errors.append(float((alone - expected[row]).abs().max() / expected[row].std()))
        check_self_test(errors, FLOAT32_LIMIT if dtype == torch.float32 else SELF_TEST_LIMIT)
        return max(errors)

    def _read(self, length: int, chunk: int) -> SlotKv:
        """A slot of its own with a prompt of so many tokens, read in such pieces."""
        kv = self._new_kv()
        length = min(length, self.context // 2)
        for start in range(0, length, max(chunk, 1)):
            tokens = [(5 + 3 * i) % self.vocab_size for i in range(start, min(start + chunk, length))]
            self.forward([Part.chain(kv, tokens, self.device)], head=False)
            kv.length += len(tokens)

        return kv


def _too_costly(rows: RowTest, max_lone_rows: int) -> str:
    """Why these numbers of rows do not serve; empty if they do."""
    if not rows.counts:
        return "on this processor a product of a row depends on the rows beside it"
    if rows.counts[0] > max_lone_rows:
        return f'a row alone would be computed as {rows.counts[0]} here, which `target.exact = "yes"` accepts'
    return ""


def _forward(model: Any, context: int, kernels: Kernels, exact: bool) -> Forward:
    if not is_plain_llama(model):
        return HfForward(model)
    on_cpu = model.device.type == "cpu"
    packed = kernels == "packed" and can_pack(model.device, model.dtype)
    return LlamaForward(model, context, kernels="packed" if packed else "plain", exact=exact and on_cpu)


def _longest(config: Any) -> int | None:
    """Positions that the model was trained for; fewer if it turns all rows of a pass differently beyond some."""
    longest: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if longest and rope.get("rope_type") in LENGTH_ROPES:
        return (rope.get("original_max_position_embeddings") or longest) - MAX_DEPTH
    return longest


def _eos(model: Any) -> frozenset[int]:
    """Every token that ends a completion, from the model's configuration and its generation defaults."""
    configs = [model.config, getattr(model, "generation_config", None)]
    found = [getattr(config, "eos_token_id", None) for config in configs]
    lists = [ids if isinstance(ids, list) else [ids] for ids in found if ids is not None]
    return frozenset(itertools.chain.from_iterable(lists))


def _argmax(logits: Tensor) -> list[int]:
    """The most probable token of each row, the first of equals; fetching them waits for the device."""
    if logits.device.type == "cpu":
        return argmax_on_host(logits.float().numpy())
    return argmax_on_device(logits)


def argmax_on_device(logits: Tensor) -> list[int]:
    found: list[int] = logits.float().max(dim=-1).indices.tolist()
    return found


def entropy_on_device(logits: Tensor) -> float:
    scores = logits.float()
    below = (scores - scores.max()).clamp_min_(MIN_LOGIT)
    weights = below.exp()
    total = weights.sum()
    return float(total.log() - weights.mul_(below).sum() / total)
