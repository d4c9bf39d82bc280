"""Repairs of vLLM's CPU build, without which drafted rows are sampled from uninitialised memory (vllm#55005).

`expand_batch_to_tokens` writes temperature, top_k and top_p of drafted rows into a copy that is dropped. A worker could
then decide the text. And `top_k` in a step without drafts takes the maximum of an empty tensor, which ends the engine.
Both functions are replaced in the module that uses them, if they have the parameters of vLLM 0.32.
"""

from __future__ import annotations

import inspect
from typing import Any

EXPAND = ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to")
MASK = ("logits", "k", "p")


def sampled() -> bool:
    """Whether drafted rows are sampled rightly above temperature 0: not on a CPU, or repaired there. Never raises."""
    try:
        from vllm.platforms import current_platform

        if not current_platform.is_cpu():
            return True
        from vllm.v1.sample import rejection_sampler

        return repair(rejection_sampler)
    except Exception:  # noqa: BLE001  another vLLM: no drafts for sampled requests
        return False


def repair(sampler: Any) -> bool:
    """Replaces the two functions of the module `sampler`; returns whether they are as expected."""
    if getattr(sampler, "edgespec_repaired", False):
        return True

    expand = sampler.expand_batch_to_tokens
    mask = sampler.apply_top_k_top_p
    if _names(expand) != EXPAND or _names(mask)[:3] != MASK:
        return False

    def mask_rows(logits: Any, *args: Any, **kwargs: Any) -> Any:
        if logits.shape[0]:
            return mask(logits, *args, **kwargs)
        return logits

    sampler.expand_batch_to_tokens = expand_batch_to_tokens
    sampler.apply_top_k_top_p = mask_rows
    sampler.edgespec_repaired = True
    return True


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Repeats `x[i]` for each token of row `i` (shape [num_tokens]); `replace_from` becomes `replace_to`."""
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(values, counts, output_size=num_tokens)


def _names(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)
