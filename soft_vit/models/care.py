"""CARE: linear attention on a quarter of the channels of two stages, convolutions elsewhere (`care_{s0,s1,s2}`).

Zhou et al., "CARE Transformer: Mobile-Friendly Linear Visual Transformer via Decoupled Dual Interaction", CVPR 2025,
arXiv 2411.16170. The network and its parameter names follow the released code,
github.com/zhouyuan888888/CARE-Transformer.

Letters: B batch, C channels, H x W a map, N = H * W.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import DropPath, register_notrace_module
from torch import Tensor, nn

from soft_vit.layers import map_to_tokens, tokens_to_map
from soft_vit.layers.attention.base import Attention, Rotate, Traits, merge_heads, split_heads, split_parts
from soft_vit.layers.plain import device_and_dtype, may_read_weight
from soft_vit.models import base
from soft_vit.ops.layout import Layout
from soft_vit.ops.linear import elu_features, linear_attention
from soft_vit.weights.adapter import Adapter

# `register_family` adds the entrypoints.
__all__ = ["CARE"]


def depthwise(channels: int, size: tuple[int, int], **dd: Any) -> nn.Conv2d:
    """Return a convolution of each channel by itself, which keeps the size of maps. size: of the kernel, odd."""
    return nn.Conv2d(channels, channels, size, padding=(size[0] // 2, size[1] // 2), groups=channels, **dd)


class UnprojectedAttention(Attention):
    """`phi(q_i) sum_j phi(k_j) v_j^T / phi(q_i) sum_j phi(k_j)` with `phi = elu + 1`.

    The values are the tokens themselves, and the result is not projected: the next layers of the block do so.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False)
    projections: ClassVar[dict[str, str]] = {"qk": "qk"}

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        # A convolution, as released.
        self.qk = nn.Conv2d(dim, 2 * dim, 1, **device_and_dtype(options))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return linear_attention(q, k, v, layout, eps=1e-6, phi=elu_features)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        if may_read_weight(self.qk):
            qk = F.linear(x, self.qk.weight.flatten(1), self.qk.bias)
        else:
            qk = self.qk(x.mT[..., None]).squeeze(-1).mT
        q, k = split_parts(qk, 2, self.num_heads)
        q, k = self.queries(q, layout, rotate), self.keys(k, layout, rotate)
        return merge_heads(self.attend(q, k, split_heads(x, self.num_heads), layout))


class TokenMixer(nn.Module):
    """Mix the pixels of three parts of the channels, `[B, C / 4, H, W]` each; they are joined to `[B, 3 C / 4, H, W]`.

    num_heads: of the attention of the first part, or 0 for convolutions by columns and rows of 11 pixels.
    """

    def __init__(self, dim: int, num_heads: int, **dd: Any) -> None:
        super().__init__()
        self.attn = UnprojectedAttention(dim, num_heads, **dd) if num_heads else None
        if not num_heads:
            self.dwconvatt_1, self.dwconvatt_2 = depthwise(dim, (11, 1), **dd), depthwise(dim, (1, 11), **dd)
        self.dwconv1, self.dwconv2 = depthwise(dim, (3, 3), **dd), depthwise(dim, (7, 7), **dd)

    def forward(self, x: Tensor, near: Tensor, far: Tensor) -> Tensor:
        if self.attn is None:
            x = self.dwconvatt_1(x) + self.dwconvatt_2(x)
        else:
            feat_size = x.shape[2], x.shape[3]
            x = tokens_to_map(self.attn(map_to_tokens(x), feat_size), feat_size)
        return torch.cat([x, self.dwconv1(near), self.dwconv2(far)], dim=1)


class Interaction(nn.Module):
    """`x + fc2(u)` with `u = conv(gelu(fc1(norm(x))))` on maps `[B, C, H, W]`; conv is depthwise.

    expand: return u, with ratio times the channels.
    """

    def __init__(self, dim: int, ratio: int, drop: float = 0.0, expand: bool = False, **dd: Any) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(dim, **dd)
        self.fc1 = nn.Conv2d(dim, ratio * dim, 1, **dd)
        self.conv = depthwise(ratio * dim, (3, 3), **dd)
        self.fc2 = None if expand else nn.Conv2d(ratio * dim, dim, 1, **dd)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        u = self.conv(F.gelu(self.fc1(self.norm(x))))
        return u if self.fc2 is None else x + self.drop(self.fc2(u))


@register_notrace_module
class CAREBlock(nn.Module):
    """Mix the pixels of three quarters of the channels, then all channels, on maps `[B, C, H, W]`.

    The first quarter is a memory that skips the mixing of pixels. Drop path and the layer scale gamma apply to the
    block's whole result, which contains its input. last: the last block of the network, which returns `ratios[1] * C`
    channels, without a shortcut.
    """

    def __init__(
        self, dim: int, num_heads: int, ratios: tuple[int, int], drop: float, drop_path: float, last: bool, **dd: Any
    ) -> None:
        super().__init__()
        self.token_mixer = TokenMixer(dim // 4, num_heads, **dd)
        self.inter1 = Interaction(dim // 4 * 3, ratios[0], drop, **dd)
        self.inter2 = Interaction(dim, ratios[1], drop, expand=last, **dd)
        self.gamma = None if last else nn.Parameter(torch.empty(dim, **dd))
        self.drop_path = DropPath(drop_path)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make the block nearly the identity."""
        if self.gamma is not None:
            nn.init.constant_(self.gamma, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        memory, *parts = x.chunk(4, dim=1)
        y = self.inter2(torch.cat([memory, self.inter1(self.token_mixer(*parts))], dim=1))
        return self.drop_path(y) if self.gamma is None else x + self.drop_path(self.gamma[:, None, None] * y)


class CAREStage(base.Stage):
    """Blocks of one resolution, after the layer that reduces the map to it. reduce: that layer, None in the first."""

    def __init__(self, reduce: nn.Module | None, blocks: Sequence[nn.Module]) -> None:
        super().__init__(blocks)
        self.reduce = reduce

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if self.reduce is None else self.reduce(x))


RELEASED_NAMES = {
    # Models without classes do not have the norms of the heads either.
    "**head.**": None,
    "stages.*.downsample.**": "stages.*.reduce.**",
    "**.inter_layer.inter*_*.*": "**.inter*.*.*",
    "**.token_mixer.qk.*": "**.token_mixer.attn.qk.*",
    "**": "**",
}


class CARE(base.StagedModel):
    """Four stages; linear attention in the last two alone; no softmax.

    Images `[B, in_chans, H, W]` are at least 32 x 32. Each reduction leaves out rows and columns that do not fill its
    cell of 4 x 4 or 2 x 2. The last map has 4 times the last of embed_dims as channels.

    Two heads, the second to learn from a teacher. The logits are the mean of both. In training, after
    `set_distilled_training`, they are the pair (head, dist_head).

    embed_dims, depths, num_heads: of each stage; embed_dims are multiples of 4, and 0 heads stand for convolutions.
    ratios: of hidden channels to channels in both interactions of each stage. kwargs: arguments of `StagedModel`.
    """

    stages_name = "stages"
    stem_pattern = r"^stem"
    head_names = ("head", "dist_head")
    dist_head: nn.Module
    init_convs = True
    rounds_up = False
    adapter = Adapter(RELEASED_NAMES)

    def __init__(
        self,
        embed_dims: Sequence[int] = (32, 64, 128, 256),
        depths: Sequence[int] = (2, 4, 8, 4),
        num_heads: Sequence[int] = (0, 0, 2, 2),
        ratios: Sequence[tuple[int, int]] = ((2, 2), (2, 4), (4, 4), (4, 4)),
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        base.check_stages(depths, embed_dims=embed_dims, num_heads=[heads + 1 for heads in num_heads])
        super().__init__([*embed_dims[:-1], ratios[-1][1] * embed_dims[-1]], **kwargs)
        self.distilled_training = False
        dim, stages = embed_dims[0], []
        self.stem = nn.Sequential(nn.Conv2d(self.in_chans, dim, 4, 4, **dd), nn.BatchNorm2d(dim, **dd))
        last = sum(depths)
        for i, rates in enumerate(self.drop_path_rates(depths)):
            before, dim, blocks = dim, embed_dims[i], []
            for rate in rates:
                last -= 1
                blocks.append(CAREBlock(dim, num_heads[i], ratios[i], proj_drop_rate, rate, last == 0, **dd))
            reduce = nn.Sequential(nn.BatchNorm2d(before, **dd), nn.Conv2d(before, dim, 2, 2, **dd)) if i else None
            stages.append(CAREStage(reduce, blocks))
        self.stages = nn.ModuleList(stages)  # type: ignore[misc]  # registered next to the property
        self.norm = nn.Identity()
        self.init_weights(needs_reset=False)

    def classifier(self, num_classes: int, **dd: Any) -> nn.Module:
        """Return a LayerNorm and a linear classifier of `[B, num_features]`."""
        norm = nn.LayerNorm(self.num_features, eps=1e-6, **dd)
        return nn.Sequential(OrderedDict(norm=norm, fc=super().classifier(num_classes, **dd)))

    def get_classifier(self) -> Any:
        """Return the linear classifiers of both heads."""
        return tuple(getattr(head, "fc", head) for head in (self.head, self.dist_head))

    def set_distilled_training(self, enable: bool = True) -> None:
        """Return the logits of both heads in training, as timm's distilled models do."""
        self.distilled_training = enable

    def embed(self, x: Tensor) -> Tensor:
        return self.stem(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Any:
        """Return logits of the output of `forward_features`, or features, pooled and through a GELU, if pre_logits.

        Without pooling, logits are maps, and the features are that output.
        """
        x = self.head_drop(F.gelu(x.mean((2, 3))) if self.global_pool else x)
        if pre_logits or isinstance(self.head, nn.Identity):
            return x
        x = x if self.global_pool else F.gelu(x).movedim(1, -1)
        logits = self.head(x).movedim(-1, 1), self.dist_head(x).movedim(-1, 1)
        return logits if self.distilled_training and self.training else (logits[0] + logits[1]) / 2


_DEEP = dict(depths=(3, 6, 10, 6))
CARE_MODELS: dict[str, dict[str, Any]] = {
    "care_s0": {},
    "care_s1": dict(_DEEP, ratios=((2, 4), (2, 4), (4, 4), (4, 4))),
    "care_s2": dict(_DEEP, ratios=((4, 4),) * 4, embed_dims=(32, 64, 192, 384), num_heads=(0, 0, 3, 3)),
}

HEADS = ("head.fc", "dist_head.fc")
base.register_family(CARE, CARE_MODELS, first_conv="stem.0", classifier=HEADS, paper_ids="arXiv:2411.16170")
