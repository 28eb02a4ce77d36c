"""Units of convolution, norm and ReLU that embed a map."""

import torch
import torch.nn.functional as F
from torch import nn

from soft_vit.layers import ConvPatchEmbed


def test_patch_embedding_is_convolution_norm_relu():
    embed = ConvPatchEmbed(3, (4,), (2,), dtype=torch.float64).eval()
    unit = embed[0]
    nn.init.normal_(unit.norm.running_mean)
    nn.init.uniform_(unit.norm.running_var, 0.5, 2)
    x = torch.randn(2, 3, 9, 7, dtype=torch.float64)
    y = F.conv2d(x, unit.conv.weight, unit.conv.bias, stride=2, padding=1)
    mean, var = unit.norm.running_mean[:, None, None], unit.norm.running_var[:, None, None]
    torch.testing.assert_close(embed(x), ((y - mean) / (var + 1e-5).sqrt()).relu())
