import pytest
import torch
from torch import Tensor

from soft_vit.ops.layout import Layout
from soft_vit.ops.map import atrous_attention, sparse_attention
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


@pytest.mark.parametrize(
    ("attend", "kernel_size", "dilation"),
    [
        *((local_attention, size, None) for size in (1, 3, 7)),
        *((atrous_attention, None, dilation) for dilation in (1, 2, 3, 8)),
        *((sparse_attention, *options) for options in ((1, 2), (3, 3), (7, 2), (5, 8), (3, 1))),
    ],
)
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


@pytest.mark.parametrize(
    ("attend", "options"), [(local_attention, (5,)), (atrous_attention, (3,)), (sparse_attention, (5, 3))]
)
def test_dropout_keeps_the_mean(attend, options) -> None:
    torch.manual_seed(0)
    q, k, _ = (x.detach() for x in inputs((15, 13)))
    # Values of one: every undropped row gives 1. Rows of p weights w have the variance sum w^2 <= 1.
    x = attend(q, k, torch.ones_like(q), Layout((15, 13)), *options, 0.5)
    assert x.std() > 0.1
    # 2 * 3 * 195 independent rows, deviation at most 1 each: 5 sigma is 5 / sqrt(1170).
    assert abs(x[..., 0].mean() - 1) < 5 / 1170**0.5
