"""The Gaussian kernel against its definition, and where rounding would break it."""

import pytest
import torch

from soft_vit.ops import gaussian_attention, gaussian_kernel, self_gaussian_kernel


def rows(*shape: int, seed: int = 0, scale: float = 1.0, dtype=torch.float64) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale).to(dtype)


def test_definition():
    q, k = rows(2, 3, 7, 5), rows(2, 3, 4, 5, seed=1)
    squared_distance = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
    torch.testing.assert_close(gaussian_kernel(q, k), torch.exp(-squared_distance / 2))
    torch.testing.assert_close(self_gaussian_kernel(q), gaussian_kernel(q, q))


@pytest.mark.parametrize("normalize", [False, True])
def test_attention_definition(normalize):
    q, v = rows(2, 3, 63, 8, scale=0.5), rows(2, 3, 63, 5, seed=1)
    kernel = gaussian_kernel(q, q)
    if normalize:
        root = kernel.sum(-1).sqrt()
        kernel = kernel / (root[..., :, None] * root[..., None, :])
    torch.testing.assert_close(gaussian_attention(q, v, normalize), kernel @ v)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, v: gaussian_kernel(q, v[..., :3]),
        lambda q, v: self_gaussian_kernel(q) @ v,
        lambda q, v: gaussian_attention(q, v),
        lambda q, v: gaussian_attention(q, v, normalize=True),
    ],
)
def test_gradients(function):
    torch.autograd.gradcheck(function, (rows(2, 5, 3).requires_grad_(), rows(2, 5, 4, seed=1).requires_grad_()))


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_entries_stay_within_zero_and_one(scale, dtype):
    """Differences of large squares round to either side of zero; exp of a positive one would overflow."""
    q = rows(63, 32, scale=scale, dtype=dtype)
    kernel = gaussian_kernel(q, q)
    assert kernel.dtype == torch.float32
    assert ((kernel >= 0) & (kernel <= 1)).all()
    own = self_gaussian_kernel(q)
    assert (own.diagonal() == 1).all()


def test_autocast_keeps_the_distances_exact():
    q = rows(2, 63, 32, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = gaussian_kernel(q, q)
    torch.testing.assert_close(inside, gaussian_kernel(q, q), rtol=0, atol=0)
