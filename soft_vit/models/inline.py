"""InLine: injective linear attention in the bodies of PVT, Swin and DeiT.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024, arXiv 2412.06590. What the
attention computes stands in `soft_vit/layers/attention/inline.py`.
"""

from collections.abc import Mapping
from typing import Any, cast

from timm.layers import resample_abs_pos_embed
from timm.models import generate_default_cfgs
from torch import Tensor

from soft_vit.layers.attention.inline import InLineAttention
from soft_vit.models.entrypoints import recorded_cfgs
from soft_vit.models.pvt import PVT
from soft_vit.models.swin import SIZES, Swin, swin_cfg
from soft_vit.models.vit import AttentionViT
from soft_vit.models.zoo import checkpoint_filter_fn, register_family  # noqa: F401  timm's name

__all__: list[str] = ["InLineDeiT", "InLinePVT", "InLineSwin"]


class InLinePVT(PVT):
    """InLine attention in the body of PVT; arguments of `PVT`."""

    attention = InLineAttention


class InLineSwin(Swin):
    """InLine attention in the body of Swin; arguments of `Swin`."""

    attention = InLineAttention


class InLineDeiT(AttentionViT):
    """InLine attention in the body of DeiT; arguments of `AttentionViT`. Sides of images are multiples of 16."""

    def own_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Released weights, whose names are the model's own."""
        return dict(state_dict)

    released_state_dict = own_state_dict

    def convert_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Released weights; position embeddings of another square are resampled."""
        weights = self.own_state_dict(state_dict)
        given, own = weights.get("pos_embed"), cast(Tensor, self.pos_embed)
        if given is not None and given.ndim == 3 and given.shape[2] == own.shape[2] and given.shape != own.shape:
            weights["pos_embed"] = resample_abs_pos_embed(given, self.patch_embed.grid_size)
        return weights


_PVT = dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), mlp_ratios=(8, 8, 4, 4))
_PVT_MODELS: dict[str, dict[str, Any]] = {
    "inline_pvt_tiny": dict(_PVT, depths=(2, 2, 2, 2)),
    "inline_pvt_small": dict(_PVT, depths=(3, 4, 6, 3)),
    "inline_pvt_medium": dict(_PVT, depths=(3, 4, 18, 3)),
    "inline_pvt_large": dict(_PVT, depths=(3, 8, 27, 3)),
}

_SWIN_MODELS: dict[str, dict[str, Any]] = {
    "inline_swin_tiny": dict(SIZES["tiny"], linear_blocks=(2, 2, 6, 0)),
    "inline_swin_small": SIZES["small"],
    "inline_swin_base": dict(SIZES["base"], linear_blocks=(2, 2, 2, 0)),
    "inline_swin_base_384": dict(SIZES["base_384"], linear_blocks=(2, 2, 2, 0)),
}

# The released names stand for narrower models than DeiT's.
_DEIT = dict(attention="inline", class_token=True, dynamic_img_size=True, depth=12)
_DEIT_MODELS: dict[str, dict[str, Any]] = {
    "inline_deit_tiny": dict(_DEIT, embed_dim=192, num_heads=6),
    "inline_deit_small": dict(_DEIT, embed_dim=320, num_heads=10),
    "inline_deit_base": dict(_DEIT, embed_dim=384, num_heads=12),
}

_DEIT_SIDES = {"inline_deit_small": 288, "inline_deit_base": 448}


def _cfg(name: str) -> dict[str, Any]:
    if name not in _DEIT_MODELS:
        return swin_cfg(name)
    side = _DEIT_SIDES.get(name, 224)
    return dict(swin_cfg(name), input_size=(3, side, side), pool_size=None)


default_cfgs = generate_default_cfgs(recorded_cfgs({**_PVT_MODELS, **_SWIN_MODELS, **_DEIT_MODELS}, _cfg))

register_family(__name__, InLinePVT, _PVT_MODELS)
register_family(__name__, InLineSwin, _SWIN_MODELS)
register_family(__name__, cast(Any, InLineDeiT), _DEIT_MODELS, out_indices=3)
