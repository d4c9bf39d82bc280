"""The noise in torch has the bits that numpy has, on every device there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.core.sampling.gumbel import gumbel, hash_bits, uniform

torch = pytest.importorskip("torch")
noise = pytest.importorskip("cloud_gateway.models.target_model.noise")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50))
def test_bits_and_uniforms_equal_numpy(device: str, seed: int, position: int, tokens: list[int]) -> None:
    ours = hash_bits(seed, position, np.array(tokens))
    theirs = noise.hash_bits_torch(seed, position, torch.tensor(tokens, device=device))
    assert (theirs.cpu().numpy().view(np.uint64) == ours).all()
    assert (noise.uniform_torch(theirs).cpu().numpy() == uniform(ours)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_noise_equals_numpy_but_for_the_last_places(device: str) -> None:
    tokens = np.arange(49152)
    theirs = noise.gumbel_torch(5, 6, torch.from_numpy(tokens).to(device)).cpu().numpy()
    np.testing.assert_allclose(theirs, gumbel(5, 6, tokens), rtol=1e-12, atol=1e-14)
