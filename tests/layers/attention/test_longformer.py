"""Longformer against dense attention under the mask of its window and its global tokens."""

import pytest
import torch
from torch import Tensor

from soft_vit.layers.attention.longformer import LongformerAttention, global_positions

# Float64 on both sides, sums of at most some hundred terms in another order: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12


def heads(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def dense(attn: LongformerAttention, x: Tensor, feat_size: tuple[int, int], positions: list[int]) -> Tensor:
    """The definition over N x N scores: window and global tokens for all, everything for the global ones."""
    N, W = x.shape[1], feat_size[1]
    reach = attn.kernel_size // 2
    mask = torch.tensor(
        [[max(abs(i // W - j // W), abs(i % W - j % W)) <= reach or j in positions for j in range(N)] for i in range(N)]
    )
    q, k, v = (heads(part, attn.num_heads) for part in attn.qkv(x).chunk(3, dim=-1))
    scores = q @ k.mT * attn.head_dim**-0.5
    result = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
    q = heads(attn.q_global(x), attn.num_heads)
    k, v = (heads(part, attn.num_heads) for part in attn.kv_global(x).chunk(2, dim=-1))
    seeing_all = (q @ k.mT * attn.head_dim**-0.5).softmax(-1) @ v
    is_global = torch.tensor([i in positions for i in range(N)])[:, None]
    return attn.proj(torch.where(is_global, seeing_all, result).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("feat_size", "kernel_size", "global_grid", "positions"),
    [
        ((7, 9), 3, (2, 2), [1 * 9 + 2, 1 * 9 + 6, 5 * 9 + 2, 5 * 9 + 6]),
        ((15, 13), 3, (1, 1), [7 * 13 + 6]),
        ((15, 13), 7, (2, 1), [3 * 13 + 6, 11 * 13 + 6]),
        ((2, 40), 5, (3, 2), [10, 30, 50, 70]),
        ((1, 1), 3, (2, 2), [0]),
    ],
)
def test_equals_dense_attention_under_its_mask(
    feat_size: tuple[int, int], kernel_size: int, global_grid: tuple[int, int], positions: list[int]
) -> None:
    torch.manual_seed(0)
    options = dict(kernel_size=kernel_size, global_grid=global_grid, dtype=torch.float64)
    attn = LongformerAttention(24, 3, feat_size=feat_size, **options)
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert sorted(global_positions(feat_size, global_grid, torch.device("cpu")).tolist()) == positions
    x = torch.randn(2, feat_size[0] * feat_size[1], 24, dtype=torch.float64, requires_grad=True)
    y, expected = attn(x, feat_size), dense(attn, x, feat_size, positions)
    assert (y - expected).norm() <= TOLERANCE * expected.norm()
    inputs = {"x": x, **dict(attn.named_parameters())}
    weight = torch.randn_like(y)
    grads, expected_grads = (torch.autograd.grad((out * weight).sum(), inputs.values()) for out in (y, expected))
    # The gradient of one key's bias cancels, and rounding remains, so each is held against the largest.
    scale = max(grad.norm() for grad in expected_grads)
    for name, grad, expected_grad in zip(inputs, grads, expected_grads, strict=True):
        assert (grad - expected_grad).norm() <= TOLERANCE * scale, name


def test_a_token_reaches_every_other_in_two_steps() -> None:
    torch.manual_seed(0)
    attn = LongformerAttention(8, 1, feat_size=(15, 13), kernel_size=3, dtype=torch.float64)
    x = torch.randn(1, 195, 8, dtype=torch.float64, requires_grad=True)
    for steps, reached in ((1, False), (2, True)):
        y = x
        for _ in range(steps):
            y = attn(y, (15, 13))
        (grad,) = torch.autograd.grad(y[0, -1].sum(), x)
        assert bool(grad[0, 0].any()) is reached
