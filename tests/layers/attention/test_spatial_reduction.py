import pytest
import torch
import torch.nn.functional as F
from timm.models.pvt_v2 import Attention as PvtV2Attention

from soft_vit.layers.attention.spatial_reduction import SpatialReductionAttention


@pytest.mark.parametrize(("linear", "sr_ratio"), [(False, 1), (False, 2), (False, 4), (True, 1), (True, 4)])
@pytest.mark.parametrize("grid", [(14, 14), (15, 13), (6, 8)])
def test_equals_the_peer_on_the_same_weights(linear: bool, sr_ratio: int, grid: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours = SpatialReductionAttention(24, 3, feat_size=grid, sr_ratio=sr_ratio, linear=linear).double()
    peer = PvtV2Attention(24, num_heads=3, sr_ratio=sr_ratio, linear_attn=linear).double()
    peer.load_state_dict(ours.state_dict())
    x = torch.randn(2, grid[0] * grid[1], 24, dtype=torch.float64)
    torch.testing.assert_close(ours(x, grid), peer(x, grid), rtol=1e-12, atol=1e-13)


def test_equals_the_dense_formula() -> None:
    torch.manual_seed(0)
    attn = SpatialReductionAttention(24, 3, feat_size=(7, 9), sr_ratio=2).double()
    x = torch.randn(2, 63, 24, dtype=torch.float64)
    # The last row and column of 7 x 9 fill no window of 2 x 2.
    windows = x.view(2, 7, 9, 24)[:, :6, :8].reshape(2, 3, 2, 4, 2, 24)
    reduced = torch.einsum("buivjc,ocij->buvo", windows, attn.sr.weight).flatten(1, 2) + attn.sr.bias
    k, v = attn.kv(attn.norm(reduced)).view(2, 12, 2, 3, 8).permute(2, 0, 3, 1, 4)
    q = attn.q(x).view(2, 63, 3, 8).transpose(1, 2)
    expected = (q @ k.mT / 8**0.5).softmax(-1) @ v
    expected = attn.proj(expected.transpose(1, 2).reshape(2, 63, 24))
    torch.testing.assert_close(attn(x, (7, 9)), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("grid", [(14, 14), (28, 56), (3, 5)])
def test_linear_form_has_49_keys_on_every_map(grid: tuple[int, int]) -> None:
    attn = SpatialReductionAttention(24, 3, feat_size=grid, sr_ratio=8, linear=True)
    assert attn.reduce(torch.randn(1, grid[0] * grid[1], 24), grid).shape == (1, 49, 24)


def test_map_smaller_than_a_window_is_one_key() -> None:
    attn = SpatialReductionAttention(24, 3, feat_size=(3, 5), sr_ratio=8)
    x = torch.randn(1, 15, 24)
    expected = F.conv2d(F.pad(x.mT.view(1, 24, 3, 5), (0, 3, 0, 5)), attn.sr.weight, attn.sr.bias)
    torch.testing.assert_close(attn.reduce(x, (3, 5)), attn.norm(expected.flatten(2).mT))
