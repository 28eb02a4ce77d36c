"""BigBird against dense attention under its block-sparse mask, and the random blocks themselves."""

import pytest
import torch
from torch import Tensor

from soft_vit.layers.attention.bigbird import bigbird_attention, random_blocks

CPU = torch.device("cpu")

# Float64 on both sides, sums of at most some hundred terms in another order: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12


def dense_mask(tokens: int, heads: int, block_size: int, random: Tensor) -> Tensor:
    """Which tokens see which, `[H, N, N]`, by the random blocks of every head and block, -1 for none."""
    block = torch.arange(tokens) // block_size
    a, b = block[:, None], block
    drawn = (random[:, block][:, :, None] == block[:, None]).any(-1)
    return ((a - b).abs() <= 1) | (torch.minimum(a, b) < 2) | drawn


@pytest.mark.parametrize(
    ("tokens", "block_size", "num_random"),
    # The third has fewer blocks than a row of the pattern, the fourth only global ones.
    [(63, 8, 3), (64, 8, 0), (63, 16, 3), (7, 16, 3), (130, 7, 20)],
)
def test_equals_dense_attention_under_its_mask(tokens: int, block_size: int, num_random: int) -> None:
    heads, generator = 2, torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, heads, tokens, 8, dtype=torch.float64, generator=generator).unbind(0)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    index, exists = random_blocks(max(3, -(-tokens // block_size)), heads, num_random, CPU)
    mask = dense_mask(tokens, heads, block_size, torch.where(exists, index, -1))
    x = bigbird_attention(*inputs, block_size, num_random)
    expected = (q @ k.mT * 8**-0.5).masked_fill(~mask, float("-inf")).softmax(-1) @ v
    assert (x - expected).norm() <= TOLERANCE * expected.norm()
    weight = torch.randn(x.shape, dtype=x.dtype, generator=generator)
    grads, expected_grads = (torch.autograd.grad((out * weight).sum(), inputs) for out in (x, expected))
    for name, grad, expected_grad in zip("qkv", grads, expected_grads, strict=True):
        assert (grad - expected_grad).norm() <= TOLERANCE * expected_grad.norm(), name


@pytest.mark.parametrize("num_blocks", [3, 4, 7, 25, 98])
@pytest.mark.parametrize("num_random", [1, 3, 5])
def test_random_blocks_are_others_and_distinct(num_blocks: int, num_random: int) -> None:
    index, exists = random_blocks(num_blocks, 4, num_random, CPU)
    assert index.shape == exists.shape == (4, num_blocks, num_random)
    for head in range(4):
        for block in range(num_blocks):
            others = [b for b in range(2, num_blocks) if abs(b - block) > 1]
            drawn = index[head, block][exists[head, block]].tolist()
            assert len(set(drawn)) == len(drawn) == min(num_random, len(others))
            assert set(drawn) <= set(others)


def test_random_blocks_are_fixed_differ_between_heads_and_are_drawn_about_equally_often() -> None:
    index, _ = random_blocks(52, 16, 1, CPU)
    torch.manual_seed(9)
    assert torch.equal(random_blocks(52, 16, 1, CPU)[0], index)
    assert not torch.equal(index[0], index[1])
    count = torch.bincount(index.flatten(), minlength=52)[2:]
    # Each of 832 draws falls on one of about 48 blocks: 17 times, with a standard deviation of 4.
    assert count.float().std() <= 6
    assert count.max() <= 17 + 5 * 4
