import pytest
import torch
import torch.nn.functional as F
from timm.models.pvt_v2 import Attention as PvtV2Attention

from soft_vit.layers.attention.spatial_reduction import SpatialReductionAttention
from soft_vit.ops.layout import Layout


@pytest.mark.parametrize(("linear", "sr_ratio"), [(False, 1), (False, 2), (False, 4), (True, 1), (True, 4)])
@pytest.mark.parametrize("grid", [(14, 14), (15, 13), (6, 8)])
def test_equals_the_peer_on_the_same_weights(linear: bool, sr_ratio: int, grid: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours = SpatialReductionAttention(24, 3, feat_size=grid, sr_ratio=sr_ratio, linear=linear).double()
    peer = PvtV2Attention(24, num_heads=3, sr_ratio=sr_ratio, linear_attn=linear).double()
    peer.load_state_dict(ours.state_dict())
    x = torch.randn(2, grid[0] * grid[1], 24, dtype=torch.float64)
    torch.testing.assert_close(ours(x, grid), peer(x, grid), rtol=1e-12, atol=1e-13)


def test_map_smaller_than_a_window_is_one_key() -> None:
    attn = SpatialReductionAttention(24, 3, feat_size=(3, 5), sr_ratio=8)
    x = torch.randn(1, 15, 24)
    expected = F.conv2d(F.pad(x.mT.view(1, 24, 3, 5), (0, 3, 0, 5)), attn.sr.weight, attn.sr.bias)
    torch.testing.assert_close(attn.reduce(x, Layout((3, 5))), attn.norm(expected.flatten(2).mT))
