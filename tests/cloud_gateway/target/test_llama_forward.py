"""The lean forward pass against transformers' own, and packed products against torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.target.cache import SlotKv
from cloud_gateway.target.forward import Forward, HfForward
from cloud_gateway.target.linear import PackedLinear, PlainLinear, can_pack
from cloud_gateway.target.llama_forward import MIN_EXACT_ROWS, LlamaForward, is_plain_llama
from tests.support.tiny_target import load_tiny, make_tiny_target
from tests.support.trees import flat_trees

CPU = torch.device("cpu")
LIMIT = {torch.float32: 1e-4, torch.bfloat16: 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("llama"), layers=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", ["packed", "plain"])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "llama-tied", "qwen2"])
def test_the_lean_pass_says_what_transformers_says(
    tmp_path: Path, architecture: Any, exact: bool, kernels: Any, dtype: torch.dtype
) -> None:
    path = make_tiny_target(tmp_path, seed=1, architecture=architecture)
    lean = LlamaForward(load_tiny(path, dtype), 512, kernels=kernels, exact=exact)
    twin = HfForward(load_tiny(path, dtype))

    @settings(max_examples=15)
    @given(prompt=st.lists(st.integers(0, 63), max_size=20), tree=flat_trees())
    def check(prompt: list[int], tree: Any) -> None:
        with torch.inference_mode():
            ours, theirs = (logits(forward, prompt, tree) for forward in (lean, twin))
        assert ours.shape == (len(tree), 64)
        assert (ours - theirs).abs().max() < LIMIT[dtype]
        if dtype == torch.float32:
            assert torch.equal(ours.argmax(-1), theirs.argmax(-1))

    check()


def logits(forward: Forward, prompt: list[int], tree: Any) -> torch.Tensor:
    kv = SlotKv(forward.shapes, forward.kv_dtype, CPU)
    if prompt:
        n = len(prompt)
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        assert forward(kv, torch.tensor(prompt), torch.arange(n), causal, head=False) is None
        kv.length = n
    positions = torch.tensor(tree.depths) + len(prompt)
    found = forward(kv, torch.tensor(tree.tokens), positions, torch.from_numpy(tree.mask()))
    assert found is not None
    return found.float()


def test_plain_kernels_leave_the_model_able_to_run(folder: Path) -> None:
    model, ids = load_tiny(folder), torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        before = model(ids).logits
        LlamaForward(model, 512, kernels="plain")
        assert torch.equal(model(ids).logits, before)


def test_packed_kernels_free_the_weights_that_they_copy(folder: Path) -> None:
    model = load_tiny(folder)
    LlamaForward(model, 512, kernels="packed")
    left = sum(p.numel() for name, p in model.named_parameters() if "proj" in name or "lm_head" in name)
    assert left == 0


@pytest.mark.parametrize(
    ("change", "plain"),
    [
        ({}, True),
        ({"hidden_act": "gelu"}, False),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, False),
        ({"sliding_window": 64}, False),
        ({"sliding_window": 64, "use_sliding_window": False}, True),
    ],
)
def test_only_a_plain_llama_takes_the_lean_pass(folder: Path, change: dict[str, Any], plain: bool) -> None:
    model = load_tiny(folder)
    for key, value in change.items():
        setattr(model.config, key, value)
    assert is_plain_llama(model) == plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@settings(max_examples=20)
@given(rows=st.integers(1, 40), inside=st.sampled_from([16, 48, 576]), outside=st.sampled_from([1, 32, 100]))
def test_packed_products_are_those_of_torch(
    rows: int, inside: int, outside: int, bias: bool, dtype: torch.dtype
) -> None:
    if not can_pack(CPU, dtype):
        pytest.skip("this machine has no packed products for these numbers")
    torch.manual_seed(rows)
    weight, offset = (torch.randn(outside, inside) / inside**0.5).to(dtype), torch.randn(outside).to(dtype)
    x, other = torch.randn(rows, inside).to(dtype), torch.randn(rows, outside).to(dtype)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.06, "rtol": 0.02}
    with torch.inference_mode():
        packed, plain = (kind(weight, offset if bias else None) for kind in (PackedLinear, PlainLinear))
        torch.testing.assert_close(packed(x), plain(x), **close)
        torch.testing.assert_close(packed.silu(x), plain.silu(x), **close)
        torch.testing.assert_close(packed.times(x, other), plain.times(x, other), **close)
        torch.testing.assert_close(packed.plus(x, other), plain.plus(x, other), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inside", [32, 576, 1536])
def test_a_packed_product_does_not_depend_on_its_company_from_the_least_rows_on(
    inside: int, dtype: torch.dtype
) -> None:
    if not can_pack(CPU, dtype):
        pytest.skip("this machine has no packed products for these numbers")
    torch.manual_seed(inside)
    x, other = torch.randn(130, inside).to(dtype), torch.randn(130, 96).to(dtype)
    with torch.inference_mode():
        product = PackedLinear((torch.randn(96, inside) / inside**0.5).to(dtype))
        all_rows, all_sums = product(x), product.plus(x, other)
        for rows in (MIN_EXACT_ROWS, 5, 8, 16, 17, 33, 64, 129):
            for start in (0, 1, 130 - rows):
                part = slice(start, start + rows)
                assert torch.equal(product(x[part]), all_rows[part])
                assert torch.equal(product.plus(x[part], other[part]), all_sums[part])


def test_packing_is_for_the_cpu_and_for_numbers_that_it_knows() -> None:
    assert not can_pack(torch.device("cuda"), torch.float32)
    assert not can_pack(CPU, torch.float64)
