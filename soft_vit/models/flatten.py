"""FLatten: focused linear attention in the bodies of PVT, PVTv2 and Swin.

Han et al., "FLatten Transformer: Vision Transformer using Focused Linear Attention", ICCV 2023, arXiv 2308.00442. What
the attention computes stands in `soft_vit/layers/attention/focused.py`.
"""

from typing import Any

from timm.models import generate_default_cfgs

from soft_vit.layers.attention.focused import FlattenAttention
from soft_vit.models.pvt import PVT
from soft_vit.models.swin import Swin
from soft_vit.models.zoo import checkpoint_filter_fn, family_cfgs, register_family  # noqa: F401  timm's name

__all__: list[str] = ["FLattenPVT", "FLattenSwin"]


class FLattenPVT(PVT):
    """Focused attention in the bodies of PVT and PVTv2; arguments of `PVT`."""

    attention = FlattenAttention


class FLattenSwin(Swin):
    """Focused attention in the body of Swin; arguments of `Swin`."""

    attention = FlattenAttention


_PVT = dict(embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4))
_PVT_V2 = dict(_PVT, overlap=True)
_PVT_MODELS: dict[str, dict[str, Any]] = {
    "flatten_pvt_tiny": dict(_PVT, depths=(2, 2, 2, 2)),
    "flatten_pvt_small": dict(_PVT, depths=(3, 4, 6, 3)),
    "flatten_pvt_medium": dict(_PVT, depths=(3, 4, 18, 3)),
    "flatten_pvt_large": dict(_PVT, depths=(3, 8, 27, 3)),
    "flatten_pvt_v2_b0": dict(_PVT_V2, embed_dims=(32, 64, 160, 256), depths=(2, 2, 2, 2)),
    "flatten_pvt_v2_b1": dict(_PVT_V2, depths=(2, 2, 2, 2)),
    "flatten_pvt_v2_b2": dict(_PVT_V2, depths=(3, 4, 6, 3)),
    "flatten_pvt_v2_b3": dict(_PVT_V2, depths=(3, 4, 18, 3)),
    "flatten_pvt_v2_b4": dict(_PVT_V2, depths=(3, 8, 27, 3)),
    "flatten_pvt_v2_b5": dict(_PVT_V2, depths=(3, 6, 40, 3), mlp_ratios=(4, 4, 4, 4)),
}

_SWIN = dict(embed_dims=(96, 192, 384, 768), num_heads=(3, 6, 12, 24), linear_blocks=(2, 2, 0, 0))
_SWIN_BASE = dict(_SWIN, embed_dims=(128, 256, 512, 1024), num_heads=(4, 8, 16, 32), depths=(2, 2, 18, 2))
_SWIN_MODELS: dict[str, dict[str, Any]] = {
    "flatten_swin_tiny": dict(_SWIN, depths=(2, 2, 6, 2)),
    "flatten_swin_small": dict(_SWIN, depths=(2, 2, 18, 2)),
    "flatten_swin_base": _SWIN_BASE,
    "flatten_swin_base_384": dict(_SWIN_BASE, window_size=96),
}

default_cfgs = generate_default_cfgs(
    family_cfgs(
        {**_PVT_MODELS, **_SWIN_MODELS},
        input_size=lambda name: (3, 384, 384) if name.endswith("_384") else (3, 224, 224),
        pool_size=lambda name: (12, 12) if name.endswith("_384") else (7, 7),
        crop_pct=lambda name: 1.0 if name.endswith("_384") else 0.875,
        crop_mode="squash",
    )
)

register_family(__name__, FLattenPVT, _PVT_MODELS)
register_family(__name__, FLattenSwin, _SWIN_MODELS)
