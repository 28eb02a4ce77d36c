"""InLine: injective linear attention in PVT, Swin and DeiT.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024, arXiv 2412.06590. The
attention is in `soft_vit/layers/attention/inline.py`.
"""

from typing import Any

from soft_vit.layers.attention.inline import InLineAttention
from soft_vit.models.base import register_family
from soft_vit.models.pvt import PVT, PVT_SIZES
from soft_vit.models.swin import SWIN_SIZES, Swin, swin_cfg
from soft_vit.models.vit import AttentionViT
from soft_vit.weights.adapter import Adapter

__all__: list[str] = ["InLineDeiT", "InLinePVT", "InLineSwin"]


class InLinePVT(PVT):
    """InLine attention in PVT; arguments of `PVT`."""

    attention = InLineAttention


class InLineSwin(Swin):
    """InLine attention in Swin; arguments of `Swin`."""

    attention = InLineAttention


# The same in the released DeiT and here.
DEIT_NAMES = ["cls_token", "pos_embed", "patch_embed.proj.*", "norm.*", "head.*"]
DEIT_NAMES += [f"blocks.*.{name}.*" for name in ("norm*", "mlp.fc*", "attn.qkv", "attn.proj", "attn.residual.*")]


class InLineDeiT(AttentionViT):
    """InLine attention in DeiT; arguments of `AttentionViT`. Sides of images are multiples of 16."""

    adapter = Adapter({name: name for name in DEIT_NAMES})


PVT_MODELS = {f"inline_pvt_{size}": dict(sizes, num_heads=(2, 4, 10, 16)) for size, sizes in PVT_SIZES.items()}
SWIN_MODELS = {
    "inline_swin_tiny": dict(SWIN_SIZES["tiny"], linear_blocks=(2, 2, 6, 0)),
    "inline_swin_small": SWIN_SIZES["small"],
    "inline_swin_base": dict(SWIN_SIZES["base"], linear_blocks=(2, 2, 2, 0)),
    "inline_swin_base_384": dict(SWIN_SIZES["base_384"], linear_blocks=(2, 2, 2, 0)),
}
# The released models are narrower than DeiT's of the same names.
DEIT: dict[str, Any] = dict(attention="inline", class_token=True, dynamic_img_size=True, depth=12)
DEIT_MODELS = {
    "inline_deit_tiny": dict(DEIT, embed_dim=192, num_heads=6),
    "inline_deit_small": dict(DEIT, embed_dim=320, num_heads=10),
    "inline_deit_base": dict(DEIT, embed_dim=384, num_heads=12),
}


def _deit_cfg(name: str) -> dict[str, Any]:
    side = {"inline_deit_small": 288, "inline_deit_base": 448}.get(name, 224)
    return dict(swin_cfg(name), input_size=(3, side, side), pool_size=None)


PAPER = "arXiv:2412.06590"
register_family(InLinePVT, PVT_MODELS, cfg=swin_cfg, paper_ids=PAPER)
register_family(InLineSwin, SWIN_MODELS, cfg=swin_cfg, paper_ids=PAPER)
register_family(InLineDeiT, DEIT_MODELS, feature_indices=3, cfg=_deit_cfg, paper_ids=PAPER)
