"""VMamba: selective scans of the map in four orders (`vmamba_*`), and the pyramid around them.

Liu et al., "VMamba: Visual State Space Model", NeurIPS 2024, arXiv 2401.10166. The networks and their parameter names
follow the released code, github.com/MzeroMiko/VMamba, of its second version.

Letters: B batch, C channels, H x W a map, N = H * W.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from timm.layers import DropPath, LayerNorm2d, register_notrace_module
from torch import Tensor, nn

from soft_vit.layers import map_to_tokens, tokens_to_map
from soft_vit.layers.attention.ssm import SSMAttention
from soft_vit.layers.mlp import Mlp
from soft_vit.layers.plain import device_and_dtype
from soft_vit.models import base
from soft_vit.weights.adapter import Adapter, from_conv

# `register_family` adds the entrypoints.
__all__ = ["VMamba"]


@register_notrace_module
class MixerBlock(base.SingleBlock):
    """An attention and an MLP, each behind a norm and with a shortcut, on maps `[B, C, H, W]`."""

    def __init__(
        self, attn_norm: nn.Module, attn: nn.Module, mlp_norm: nn.Module, mlp: nn.Module, drop_path: float
    ) -> None:
        super().__init__()
        self.attn_norm, self.attn, self.drop_path1 = attn_norm, attn, DropPath(drop_path)
        self.mlp_norm, self.mlp, self.drop_path2 = mlp_norm, mlp, DropPath(drop_path)

    def apply_layers(self, x: Tensor) -> Tensor:
        feat_size = x.shape[2], x.shape[3]
        x = map_to_tokens(x)
        x = x + self.drop_path1(self.attn(self.attn_norm(x), feat_size))
        return tokens_to_map(x + self.drop_path2(self.mlp(self.mlp_norm(x))), feat_size)


def reduction(dim: int, out_dim: int, *empty: nn.Module, size: int = 3, stride: int = 2, **dd: Any) -> list[nn.Module]:
    """Return a convolution with a padding of one pixel, and a LayerNorm of each pixel.

    empty: modules without weights between them, as the names of released weights count them.
    """
    return [nn.Conv2d(dim, out_dim, size, stride, padding=1, **dd), *empty, LayerNorm2d(out_dim, eps=1e-5, **dd)]


class MixerPyramid(base.StagedModel):
    """Stages of blocks for images `[B, in_chans, H, W]` of at least 32 x 32; each stride of 2 rounds the map up.

    embed_dims, depths: of each stage. make_block: returns a block from the index of its stage and its drop-path rate.
    kwargs: arguments of `StagedModel`.
    """

    names: ClassVar[dict[str, str | None]] = {
        "classifier.norm.*": "norm.*",
        "classifier.head.*": "head.*",
        "patch_embed.0.*": "patch_embed.0.*",
        "patch_embed.2.*": "patch_embed.2.*",
        # Of older files.
        "patch_embed.proj.*": "patch_embed.0.*",
        "patch_embed.norm.*": "patch_embed.2.*",
        "**.op.**": "**.attn.**",
        "**.norm.*": "**.attn_norm.*",
        "**.norm2.*": "**.mlp_norm.*",
        # Of older files.
        "**.self_attention.**": "**.attn.**",
        "**.ln_1.*": "**.attn_norm.*",
        "**": "**",
    }
    """The names of released weights, before which a family may have its own."""

    def __init__(
        self,
        embed_dims: Sequence[int],
        depths: Sequence[int],
        make_block: Callable[[int, float], nn.Module],
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        super().__init__(embed_dims, **kwargs)
        half, none = embed_dims[0] // 2, nn.Identity()
        stem = reduction(self.in_chans, half, none, **dd), reduction(half, embed_dims[0], none, **dd)
        self.patch_embed = nn.Sequential(*stem[0], none, nn.GELU(), *stem[1])
        self.layers = nn.ModuleList()
        for i, rates in enumerate(self.drop_path_rates(depths)):
            blocks, downsample = [make_block(i, rate) for rate in rates], None
            if i + 1 < len(depths):
                downsample = nn.Sequential(none, *reduction(embed_dims[i], embed_dims[i + 1], none, **dd))
            self.layers.append(base.Stage(blocks, downsample))
        self.norm = LayerNorm2d(embed_dims[-1], eps=1e-5, **dd)
        self.init_weights(needs_reset=False)


class VMamba(MixerPyramid):
    """VMamba for images `[B, in_chans, H, W]` of at least 32 x 32; each stride of 2 rounds the map up.

    embed_dims, depths: of each stage. ssm_ratio: ratio of channels in the scans to those of a stage. mlp_ratio: ratio
    of hidden channels to channels in the MLPs. kwargs: arguments of `StagedModel`, such as img_size, num_classes and
    global_pool.
    """

    # 1x1 layers are linear ones or, in some files, convolutions.
    adapter = Adapter(
        {"**.mlp.**": "**.mlp.**", **MixerPyramid.names},
        values=dict.fromkeys(("**.op.**", "**.mlp.**", "**.self_attention.**"), (from_conv, lambda weight: weight)),
    )

    def __init__(
        self,
        embed_dims: Sequence[int] = (96, 192, 384, 768),
        depths: Sequence[int] = (2, 2, 8, 2),
        ssm_ratio: int = 1,
        mlp_ratio: float = 4.0,
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        base.check_stages(depths, embed_dims=embed_dims)

        def make_block(stage: int, rate: float) -> nn.Module:
            dim = embed_dims[stage]
            attn = SSMAttention(dim, dim, ssm_ratio=ssm_ratio, proj_drop=proj_drop_rate, **dd)
            mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop_rate, **dd)
            return MixerBlock(nn.LayerNorm(dim, **dd), attn, nn.LayerNorm(dim, **dd), mlp, rate)

        super().__init__(embed_dims, depths, make_block, **kwargs)


TINY, BASE = (96, 192, 384, 768), (128, 256, 512, 1024)
VMAMBA_MODELS: dict[str, dict[str, Any]] = {
    # The name has the ratio and the depth of the third stage.
    "vmamba_tiny_s1l8": dict(embed_dims=TINY, depths=(2, 2, 8, 2)),
    "vmamba_tiny_s2l5": dict(embed_dims=TINY, depths=(2, 2, 5, 2), ssm_ratio=2),
    "vmamba_small_s2l15": dict(embed_dims=TINY, depths=(2, 2, 15, 2), ssm_ratio=2),
    "vmamba_small_s1l20": dict(embed_dims=TINY, depths=(2, 2, 20, 2)),
    "vmamba_base_s2l15": dict(embed_dims=BASE, depths=(2, 2, 15, 2), ssm_ratio=2),
    "vmamba_base_s1l20": dict(embed_dims=BASE, depths=(2, 2, 20, 2)),
}

base.register_family(VMamba, VMAMBA_MODELS, first_conv="patch_embed.0", paper_ids="arXiv:2401.10166")
