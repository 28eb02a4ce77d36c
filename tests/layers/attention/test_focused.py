"""The focused attention of the released FLatten models, beside the paper's of test_layouts.py."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.focused import FlattenAttention

DIM, HEADS, GRID = 12, 3, (5, 7)


def heads(x: Tensor) -> Tensor:
    """`[B, N, C]` to `[B, H, N, C / H]`."""
    return x.unflatten(2, (HEADS, -1)).transpose(1, 2)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("size", [1.0, 1e-3], ids=["", "small enough that 1e-6 counts"])
def test_equals_the_dense_formula(size: float, prefix: int) -> None:
    torch.manual_seed(0)
    attn = FlattenAttention(DIM, HEADS, feat_size=GRID, dtype=torch.float64)
    for name, parameter in attn.named_parameters():
        nn.init.normal_(parameter, std=size if name.startswith("qkv") else 0.3)
    x = torch.randn(2, prefix + 35, DIM, dtype=torch.float64)
    q, k, v = attn.qkv(x).chunk(3, dim=-1)
    k = k + size * F.pad(attn.positional_encoding, (0, 0, prefix, 0))
    with torch.no_grad():
        attn.positional_encoding.mul_(size)
    q, k = ((part.relu() + 1e-6) / torch.log1p(attn.scale.exp()) for part in (q, k))
    # Focused over all channels, before these are divided among heads.
    q, k = (part**3 * (part.norm(dim=-1) / (part**3).norm(dim=-1))[..., None] for part in (q, k))
    weights = heads(q) @ heads(k).mT
    mixed = weights @ heads(v) / (weights.sum(-1, keepdim=True) + 1e-6 * x.shape[1])
    maps = heads(v)[:, :, prefix:].flatten(0, 1).mT.unflatten(2, GRID)
    local = F.conv2d(maps, attn.dwc.weight, attn.dwc.bias, padding=2, groups=DIM // HEADS)
    mixed = mixed + F.pad(local.flatten(2).mT.unflatten(0, (2, HEADS)), (0, 0, prefix, 0))
    expected = attn.proj(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x, GRID, prefix), expected, rtol=1e-10, atol=1e-12)
