import torch
import torch.nn.functional as F

from soft_vit.layers.attention.spatial_reduction import SpatialReductionAttention
from soft_vit.ops.layout import Layout


def test_map_smaller_than_a_window_is_one_key() -> None:
    attn = SpatialReductionAttention(24, 3, feat_size=(3, 5), sr_ratio=8)
    x = torch.randn(1, 15, 24)
    expected = F.conv2d(F.pad(x.mT.view(1, 24, 3, 5), (0, 3, 0, 5)), attn.sr.weight, attn.sr.bias)
    torch.testing.assert_close(attn.reduce(x, Layout((3, 5))), attn.norm(expected.flatten(2).mT))
