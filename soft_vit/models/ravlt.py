"""RAVLT: rank-augmented linear attention in two stages, softmax attention in two (`ravlt_{t,s,b,l}`).

Fan et al., "Breaking the Low-Rank Dilemma of Linear Attention", CVPR 2025, arXiv 2411.07635. MAViT (`mavit.py`) is the
same network with another linear attention.

Letters: B batch, C channels, H x W a map, N = H * W.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from soft_vit.layers import mlp
from soft_vit.layers.attention.base import Attention
from soft_vit.layers.attention.gated_rotary import GatedRotaryAttention, GatedRotarySoftmaxAttention
from soft_vit.layers.attention.rala import RALAttention
from soft_vit.layers.embed import channels_last, map_to_tokens, tokens_to_map
from soft_vit.layers.plain import ShortcutConv, device_and_dtype
from soft_vit.models.base import Stage, StagedModel, check_stages, register_family
from soft_vit.ops.rotary import side_angles
from soft_vit.weights.adapter import Adapter, from_conv, to_conv

# `register_family` adds the entrypoints.
__all__ = ["RAVLT"]


class ConvStem(nn.Module):
    """Map images `[B, C_in, H, W]` to `[B, embed_dim, H / 4, W / 4]` by four convolutions, two of stride 2."""

    def __init__(self, in_chans: int, embed_dim: int, **dd: Any) -> None:
        super().__init__()
        widths = (in_chans, embed_dim // 2, embed_dim // 2, embed_dim // 2, embed_dim)
        layers: list[nn.Module] = []
        for i, stride in enumerate((2, 1, 1, 2)):
            layers += [nn.Conv2d(widths[i], widths[i + 1], 3, stride, padding=1, **dd)]
            layers += [nn.BatchNorm2d(widths[i + 1], **dd), nn.GELU()]
        self.proj = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(channels_last(x))


class Downsample(nn.Sequential):
    """Map `[B, C, H, W]` to `[B, C_out, ceil(H / 2), ceil(W / 2)]`."""

    def __init__(self, dim: int, out_dim: int, **dd: Any) -> None:
        super().__init__()
        self.reduction = nn.Conv2d(dim, out_dim, 3, 2, padding=1, **dd)
        self.norm = nn.BatchNorm2d(out_dim, **dd)


class TokenNorm(nn.Module):
    """Return a map `[B, C, H, W]` as tokens `[B, N, C]`, normalised by a LayerNorm."""

    def __init__(self, dim: int, **dd: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(map_to_tokens(x))


class ConvMlp(mlp.ConvMlp):
    """The MLP with a convolution, without an activation behind it, by the released name."""

    conv_name = "dwconv"
    has_second_act = False


class Block(nn.Module):
    """A depthwise convolution for positions, attention and an MLP, each with a shortcut, on maps `[B, C, H, W]`."""

    def __init__(
        self, dim: int, attn: GatedRotaryAttention, mlp_ratio: float, layer_scale: float, drop_path: float, **dd: Any
    ) -> None:
        super().__init__()
        self.layer_scale = layer_scale
        self.pos = ShortcutConv(dim, **dd)
        self.norm1 = TokenNorm(dim, **dd)
        self.attn = attn
        self.norm2 = TokenNorm(dim, **dd)
        self.ffn = ConvMlp(dim, int(mlp_ratio * dim), **dd)
        self.gamma_1, self.gamma_2 = (nn.Parameter(torch.empty(1, dim, 1, 1, **dd)) for _ in range(2))
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for gamma in (self.gamma_1, self.gamma_2):
            nn.init.constant_(gamma, self.layer_scale)

    def forward(self, x: Tensor) -> Tensor:
        size = (x.shape[2], x.shape[3])
        x = self.pos(x)
        x = torch.addcmul(x, self.gamma_1, self.drop_path(tokens_to_map(self.attn(self.norm1(x), size), size)))
        return torch.addcmul(x, self.gamma_2, self.drop_path(tokens_to_map(self.ffn(self.norm2(x), size), size)))


def rotary_buffers(model: "RAVLT") -> dict[str, Tensor]:
    """Return the angles of the rotary embedding that released files hold for each stage."""
    buffers = {}
    for i, stage in enumerate(model.layers):
        attn: Any = next(module for module in stage.modules() if isinstance(module, Attention))
        _, columns = side_angles((1, 2), attn.head_dim, torch.empty(0), end_point=True)
        buffers[f"layers.{i}.RoPE.angle"] = columns[1].repeat_interleave(2)
    return buffers


class RAVLT(StagedModel):
    """Four stages: rank-augmented linear attention in the first two, softmax attention in the last two.

    Images `[B, in_chans, H, W]` are at least 32 x 32; each stride of 2 rounds the map up. The cost of the last two
    stages grows with the square of the number of tokens.

    proj_width: channels of the layer before the head.
    layer_scale: initial scale of the branches of the blocks, for each stage.
    embed_dims, depths, num_heads: of each stage. kwargs: arguments of `StagedModel`.
    """

    final_names = ("proj", "norm", "act")
    adapter = Adapter(
        # The layer `proj` is a convolution here too.
        {"**.RoPE.angle": None, "proj.*": "proj.*", "**.weight": "**.weight", "**": "**"},
        values={"**.weight": (from_conv, to_conv)},
        computed=rotary_buffers,
    )
    init_convs = True

    linear_attention: ClassVar[type[GatedRotaryAttention]] = RALAttention

    def __init__(
        self,
        embed_dims: Sequence[int] = (64, 128, 256, 512),
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (1, 2, 4, 8),
        mlp_ratio: float = 3.5,
        proj_width: int = 1024,
        layer_scale: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        check_stages(depths, embed_dims=embed_dims, num_heads=num_heads, layer_scale=layer_scale)
        super().__init__(embed_dims, num_features=proj_width, **kwargs)
        self.patch_embed = ConvStem(self.in_chans, embed_dims[0], **dd)
        grids = self.grids(self.img_size)
        self.layers = nn.ModuleList()
        for i, rates in enumerate(self.drop_path_rates(depths)):
            attention = self.linear_attention if i < 2 else GatedRotarySoftmaxAttention
            blocks = []
            for rate in rates:
                attn = attention(embed_dims[i], num_heads[i], feat_size=grids[i], **dd)
                blocks.append(Block(embed_dims[i], attn, mlp_ratio, layer_scale[i], rate, **dd))
            self.layers.append(Stage(blocks, Downsample(*embed_dims[i : i + 2], **dd) if i + 1 < len(depths) else None))
        self.proj = nn.Conv2d(embed_dims[-1], proj_width, 1, **dd)
        self.norm = nn.BatchNorm2d(proj_width, **dd)
        self.act = nn.SiLU()
        self.init_weights(needs_reset=False)

    def forward_norm(self, x: Tensor, norm: bool = True) -> Tensor:
        return self.act(self.norm(self.proj(x))) if norm else x

    def feature(self, index: int, x: Tensor, norm: bool, output_fmt: str) -> Tensor:
        """Return the output x of a stage; the final norm is not applied, as it has proj_width channels."""
        return super().feature(index, x, False, output_fmt)


RAVLT_MODELS: dict[str, dict[str, Any]] = {
    "ravlt_t": dict(embed_dims=(64, 128, 256, 512), depths=(2, 2, 6, 2), num_heads=(1, 2, 4, 8)),
    "ravlt_s": dict(embed_dims=(64, 128, 320, 512), depths=(3, 5, 9, 3), num_heads=(1, 2, 5, 8)),
    "ravlt_b": dict(
        embed_dims=(96, 192, 384, 512), depths=(4, 6, 12, 6), num_heads=(1, 2, 6, 8), layer_scale=(1, 1, 1e-6, 1e-6)
    ),
    "ravlt_l": dict(
        embed_dims=(96, 192, 448, 640), depths=(4, 7, 19, 8), num_heads=(1, 2, 7, 10), layer_scale=(1e-6,) * 4
    ),
}

register_family(RAVLT, RAVLT_MODELS, first_conv="patch_embed.proj.0", paper_ids="arXiv:2411.07635")
