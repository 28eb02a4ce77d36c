"""WeightFormer: no attention, but weights of layers that follow from each image's pooled tokens (`wfm_*`).

He et al., "Linear-Time Global Visual Modeling without Explicit Attention", arXiv 2605.01711. The network and its
parameter names follow the released code, github.com/LeapLabTHU/WeightFormer.

Letters: B batch, C channels, H x W a map, N = H * W.
"""

from typing import Any, ClassVar

import torch.nn.functional as F
from timm.layers import DropPath, LayerNorm2d, register_notrace_module
from torch import Tensor, nn

from soft_vit.layers import map_to_tokens, tokens_to_map
from soft_vit.layers.attention.wfm import DynamicConv, DynamicLinear
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.models import base
from soft_vit.models.ca_deit import WholePatchEmbed
from soft_vit.ops.layout import Layout

# `register_family` adds the entrypoints.
__all__ = ["WeightFormer"]


@register_notrace_module
class WeightFormerBlock(base.SingleBlock):
    """A depthwise convolution and an MLP, each with a shortcut, on maps `[B, C, H, W]`.

    dynamic: take the convolution and the first layer of the MLP with weights of each image, after a LayerNorm that the
        shortcut does not bypass.
    """

    def __init__(self, dim: int, hidden_dim: int, dynamic: bool, proj_drop: float, drop_path: float, **dd: Any) -> None:
        super().__init__()
        self.dynamic = dynamic
        self.norm1 = LayerNorm2d(dim, eps=1e-6, **dd) if dynamic else nn.Identity()
        self.dwc = DynamicConv(dim, **dd) if dynamic else nn.Conv2d(dim, dim, 3, padding=1, groups=dim, **dd)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, **dd)
        self.linear1 = DynamicLinear(dim, hidden_dim, **dd) if dynamic else Linear(dim, hidden_dim, **dd)
        self.linear2 = Linear(hidden_dim, dim, **dd)
        self.drop = nn.Dropout(proj_drop)
        self.drop_path = DropPath(drop_path)

    def apply_layers(self, x: Tensor) -> Tensor:
        feat_size = x.shape[2], x.shape[3]
        x = self.norm1(x)
        x = map_to_tokens(x) + map_to_tokens(self.dwc(x))
        hidden = self.norm2(x)
        hidden = self.linear1(hidden, Layout(feat_size)) if self.dynamic else self.linear1(hidden)
        hidden = self.drop(self.linear2(self.drop(F.gelu(hidden))))
        return tokens_to_map(x + self.drop_path(hidden), feat_size)


class WeightFormer(base.StagedModel):
    """Blocks of one resolution, of which every third is dynamic, for images `[B, in_chans, H, W]` of at least 32 x 32.

    Every block counts as a stage. Rows and columns that do not fill a patch are left out, as in the released code.
    mlp_ratio: ratio of hidden channels to channels in the MLPs. kwargs: arguments of `StagedModel`, such as img_size,
    num_classes and global_pool.
    """

    stages_name: ClassVar[str] = "blocks"
    stem_pattern: ClassVar[str] = r"^(?:patch_embed|init_norm)"
    rounds_up = False

    def __init__(
        self,
        patch_size: int = 16,
        embed_dim: int = 192,
        depth: int = 17,
        mlp_ratio: float = 4.0,
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        super().__init__([embed_dim] * depth, [patch_size] * depth, **kwargs)
        self.patch_embed = WholePatchEmbed(self.in_chans, embed_dim, patch_size, **dd)
        self.init_norm = LayerNorm2d(embed_dim, eps=1e-6, **dd)
        (rates,) = self.drop_path_rates([depth])
        self.blocks = nn.ModuleList(
            WeightFormerBlock(embed_dim, int(mlp_ratio * embed_dim), i % 3 == 1, proj_drop_rate, rate, **dd)
            for i, rate in enumerate(rates)
        )
        self.norm = LayerNorm2d(embed_dim, eps=1e-6, **dd)
        self.init_weights(needs_reset=False)

    def embed(self, x: Tensor) -> Tensor:
        return self.init_norm(self.patch_embed(x))


WEIGHTFORMER_MODELS: dict[str, dict[str, Any]] = {
    "wfm_tiny": dict(embed_dim=192),
    "wfm_small": dict(embed_dim=384),
    # The same network, trained on larger images.
    "wfm_base": dict(embed_dim=384),
}


def _cfg(name: str) -> dict[str, Any]:
    side = 448 if name == "wfm_base" else 224
    return dict(input_size=(3, side, side), pool_size=(side // 16, side // 16))


PAPER = "arXiv:2605.01711"
base.register_family(WeightFormer, WEIGHTFORMER_MODELS, 3, _cfg, paper_ids=PAPER, crop_mode="squash")
