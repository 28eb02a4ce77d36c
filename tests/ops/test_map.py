"""Softmax over maps, landmarks and the Gaussian kernel, against the dense forms."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops import gaussian_attention, gaussian_kernel, self_gaussian_kernel
from soft_vit.ops.layout import Layout
from soft_vit.ops.map import atrous_attention, sparse_attention
from soft_vit.ops.nystrom import attention_through_landmarks, iterative_pseudo_inverse
from soft_vit.ops.windows import local_attention

# Maps smaller than a tile, of several tiles, not a multiple of anything, and one-dimensional.
GRIDS = [(7, 9), (15, 13), (1, 1), (17, 20), (1, 40), (23, 3)]


def distances(grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Differences in y and in x of every pair of tokens, `[N, N]` each."""
    index = torch.arange(grid[0] * grid[1])
    y, x = index // grid[1], index % grid[1]
    return y[:, None] - y, x[:, None] - x


def near(grid: tuple[int, int], kernel_size: int) -> Tensor:
    y, x = distances(grid)
    return (y.abs() <= kernel_size // 2) & (x.abs() <= kernel_size // 2)


def in_phase(grid: tuple[int, int], dilation: int) -> Tensor:
    y, x = distances(grid)
    return (y % dilation == 0) & (x % dilation == 0)


def masked_softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def inputs(grid: tuple[int, int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, grid[0] * grid[1], 8)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


NEIGHBOURHOODS = [
    *((local_attention, size, None) for size in (1, 3, 7)),
    *((atrous_attention, None, dilation) for dilation in (1, 2, 3, 8)),
    *((sparse_attention, *options) for options in ((1, 2), (3, 3), (7, 2), (5, 8), (3, 1))),
]


@pytest.mark.parametrize(("attend", "kernel_size", "dilation"), NEIGHBOURHOODS)
@pytest.mark.parametrize("grid", GRIDS)
def test_softmax_over_the_neighbourhood_the_phase_or_both(attend, kernel_size, dilation, grid) -> None:
    """Results and gradients agree to float64 rounding of sums of at most N terms."""
    options = [option for option in (kernel_size, dilation) if option]
    mask = torch.zeros(1, dtype=torch.bool)
    if kernel_size:
        mask = mask | near(grid, kernel_size)
    if dilation:
        mask = mask | in_phase(grid, dilation)
    ours, reference = inputs(grid), inputs(grid)
    weight = torch.randn(ours[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got, wanted = attend(*ours, Layout(grid), *options), masked_softmax_attention(*reference, mask)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13)
    (got * weight).sum().backward()
    (wanted * weight).sum().backward()
    for name, mine, theirs in zip("qkv", ours, reference, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-11, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_large_scores_do_not_overflow() -> None:
    grid = (15, 13)
    q, k, v = (x.detach().float() for x in inputs(grid))
    q = 1e3 * q
    expected = masked_softmax_attention(q.double(), k.double(), v.double(), near(grid, 3) | in_phase(grid, 4))
    actual = sparse_attention(q, k, v, Layout(grid), 3, 4)
    # Scores of about 1e4 carry an error of 1e4 * 2^-24 * a few, which the softmax passes on.
    assert (actual - expected).abs().max() < 1e-2


def test_averages_of_many_keys_stay_in_half_precision() -> None:
    """3136 equal keys with values of 30, whose sum fp16 does not hold."""
    q, v = torch.zeros(1, 1, 56 * 56, 8, dtype=torch.float16), torch.full((1, 1, 56 * 56, 8), 30.0).half()
    torch.testing.assert_close(sparse_attention(q, q, v, Layout((56, 56)), 7, 1), v)


DROPPED = [(local_attention, (5,)), (atrous_attention, (3,)), (sparse_attention, (5, 3))]


@pytest.mark.parametrize(("attend", "options"), DROPPED)
def test_dropout_keeps_the_mean(attend, options) -> None:
    torch.manual_seed(0)
    q, k, _ = (x.detach() for x in inputs((15, 13)))
    # Values of one: every undropped row gives 1. Rows of p weights w have the variance sum w^2 <= 1.
    x = attend(q, k, torch.ones_like(q), Layout((15, 13)), *options, 0.5)
    assert x.std() > 0.1
    # 2 * 3 * 195 independent rows, deviation at most 1 each: 5 sigma is 5 / sqrt(1170).
    assert abs(x[..., 0].mean() - 1) < 5 / 1170**0.5


def softmax_matrix(size: int, sharpness: float, seed: int = 0) -> Tensor:
    """Softmax of queries that are their keys: the larger the sharpness, the closer to the identity."""
    x = F.normalize(
        torch.randn(2, size, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1
    )
    return (sharpness * x @ x.mT).softmax(-1)


@pytest.mark.parametrize("sharpness", [8.0, 12.0])
def test_iteration_reaches_the_inverse_of_a_conditioned_matrix(sharpness: float) -> None:
    a = softmax_matrix(49, sharpness)
    z = iterative_pseudo_inverse(a, iters=20)
    # A Newton iteration corrects itself: what is left is the rounding of one product, times the condition number.
    assert (a @ z - torch.eye(49, dtype=a.dtype)).abs().max() < 1e-14 * torch.linalg.cond(a).max()


def test_iteration_cubes_the_residual() -> None:
    a = softmax_matrix(49, 12.0)
    eye = torch.eye(49, dtype=a.dtype)
    residual = eye - a @ iterative_pseudo_inverse(a, iters=3)
    following = eye - a @ iterative_pseudo_inverse(a, iters=4)
    # Exactly: I - A Z' = R^3 (I + 3 (I - R)) / 4 with R = I - A Z.
    cube = residual @ residual @ residual
    torch.testing.assert_close(following, cube @ (eye + 3 * (residual - eye) * -1) / 4, rtol=0, atol=1e-12)


def test_flat_matrix_stays_finite() -> None:
    a = torch.full((1, 49, 49), 1 / 49)
    # The pseudo-inverse of the averaging matrix is itself.
    torch.testing.assert_close(iterative_pseudo_inverse(a), a, rtol=0, atol=1e-5)


def test_gradient_is_that_of_the_steps_taken() -> None:
    # No two rows or columns of one sum: the largest would have no derivative.
    a = torch.rand(1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: iterative_pseudo_inverse(a, 3), (a,))


@pytest.mark.parametrize(("inverse", "iters"), [("exact", 0), ("iterative", 20)])
def test_every_token_a_landmark_is_full_attention(inverse, iters: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, v = torch.randn(2, 2, 3, 49, 16, generator=generator, dtype=torch.float64)
    # Keys near the queries keep the landmark matrix far from singular.
    k = 1.5 * (q + 0.1 * torch.randn(q.shape, generator=generator, dtype=torch.float64))
    q = 1.5 * q
    actual = attention_through_landmarks(q, k, v, q, k, inverse=inverse, iters=iters)
    # S S^-1 S = S, with a condition number of the 49 x 49 softmax below 1e3.
    torch.testing.assert_close(actual, F.scaled_dot_product_attention(q, k, v), rtol=0, atol=1e-9)


# The Gaussian kernel against its definition, and where rounding would break it.


def rows(*shape: int, seed: int = 0, scale: float = 1.0, dtype=torch.float64) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale).to(dtype)


def test_definition():
    q, k = rows(2, 3, 7, 5), rows(2, 3, 4, 5, seed=1)
    squared_distance = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
    torch.testing.assert_close(gaussian_kernel(q, k), torch.exp(-squared_distance / 2))
    torch.testing.assert_close(self_gaussian_kernel(q), gaussian_kernel(q, q))


FUNCTIONS = [lambda q, v: gaussian_kernel(q, v[..., :3]), lambda q, v: self_gaussian_kernel(q) @ v]
FUNCTIONS += [lambda q, v: gaussian_attention(q, v), lambda q, v: gaussian_attention(q, v, normalize=True)]


@pytest.mark.parametrize("function", FUNCTIONS)
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
