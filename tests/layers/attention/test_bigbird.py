"""BigBird against dense attention under its block-sparse mask, and the random blocks themselves."""

import pytest
import torch
from torch import Tensor

from soft_vit.layers.attention.bigbird import bigbird_attention, random_blocks

CPU = torch.device("cpu")

# Float64 on both sides, sums of at most some hundred terms in another order: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12


def dense_mask(tokens: int, heads: int, block_size: int, window: int, num_global: int, random: Tensor | None) -> Tensor:
    """Which tokens see which, `[H, N, N]`; random: the random blocks of every head and block, None for no block."""
    mask = torch.zeros(heads, tokens, tokens, dtype=torch.bool)
    for head in range(heads):
        for i in range(tokens):
            for j in range(tokens):
                a, b = i // block_size, j // block_size
                drawn = random is not None and b in random[head, a]
                mask[head, i, j] = abs(a - b) <= window // 2 or min(a, b) < num_global or drawn
    return mask


@pytest.mark.parametrize(
    ("tokens", "block_size", "window", "num_global", "num_random"),
    [
        (63, 8, 3, 2, 3),
        (63, 8, 1, 1, 1),
        (63, 8, 3, 0, 2),
        (63, 8, 3, 1, 0),
        (64, 8, 5, 1, 2),
        # Fewer blocks than a row of the pattern has, in which all see all.
        (63, 16, 3, 2, 3),
        (7, 16, 3, 2, 3),
        (130, 7, 3, 1, 20),
    ],
)
def test_equals_dense_attention_under_its_mask(
    tokens: int, block_size: int, window: int, num_global: int, num_random: int
) -> None:
    heads, generator = 2, torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, heads, tokens, 8, dtype=torch.float64, generator=generator).unbind(0)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    num_blocks = -(-tokens // block_size)
    random = None
    if num_blocks > num_global:
        index, exists = random_blocks(num_blocks, heads, window, num_global, num_random, 4, CPU)
        random = torch.where(exists, index, -1)
    mask = dense_mask(tokens, heads, block_size, window, num_global, random)
    x = bigbird_attention(*inputs, block_size, window, num_global, num_random, seed=4)
    expected = (q @ k.mT * 8**-0.5).masked_fill(~mask, float("-inf")).softmax(-1) @ v
    assert (x - expected).norm() <= TOLERANCE * expected.norm()
    weight = torch.randn(x.shape, dtype=x.dtype, generator=generator)
    grads, expected_grads = (torch.autograd.grad((out * weight).sum(), inputs) for out in (x, expected))
    for name, grad, expected_grad in zip("qkv", grads, expected_grads, strict=True):
        assert (grad - expected_grad).norm() <= TOLERANCE * expected_grad.norm(), name


@pytest.mark.parametrize("num_blocks", [3, 4, 7, 25, 98])
@pytest.mark.parametrize(("window", "num_global", "num_random"), [(3, 2, 3), (1, 0, 5), (5, 1, 1)])
def test_random_blocks_are_others_and_distinct(num_blocks: int, window: int, num_global: int, num_random: int) -> None:
    index, exists = random_blocks(num_blocks, 4, window, num_global, num_random, 0, CPU)
    assert index.shape == exists.shape == (4, num_blocks, num_random)
    for head in range(4):
        for block in range(num_blocks):
            others = [b for b in range(num_global, num_blocks) if abs(b - block) > window // 2]
            drawn = index[head, block][exists[head, block]].tolist()
            assert len(set(drawn)) == len(drawn) == min(num_random, len(others))
            assert set(drawn) <= set(others)


def test_random_blocks_are_fixed_and_differ_between_heads_and_seeds() -> None:
    arguments = (50, 4, 3, 2, 3)
    index, _ = random_blocks(*arguments, 0, CPU)
    torch.manual_seed(9)
    assert torch.equal(random_blocks(*arguments, 0, CPU)[0], index)
    assert not torch.equal(random_blocks(*arguments, 1, CPU)[0], index)
    assert not torch.equal(index[0], index[1])


def test_random_blocks_are_drawn_about_equally_often() -> None:
    num_blocks, num_heads = 50, 16
    index, _ = random_blocks(num_blocks, num_heads, 1, 0, 1, 0, CPU)
    count = torch.bincount(index.flatten(), minlength=num_blocks)
    # Each of 800 draws falls on a block with probability 1 / 50: 16 times, with a standard deviation of 4.
    assert count.float().std() <= 6
    assert count.max() <= 16 + 5 * 4
