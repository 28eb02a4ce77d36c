"""FLatten: focused linear attention in the bodies of PVT, PVTv2 and Swin.

Han et al., "FLatten Transformer: Vision Transformer using Focused Linear Attention", ICCV 2023, arXiv 2308.00442. What
the attention computes stands in `soft_vit/layers/attention/focused.py`.
"""

from typing import Any

from timm.models import generate_default_cfgs

from soft_vit.layers.attention.focused import FlattenAttention
from soft_vit.models.entrypoints import recorded_cfgs
from soft_vit.models.pvt import PVT
from soft_vit.models.swin import SIZES, Swin, swin_cfg
from soft_vit.models.zoo import checkpoint_filter_fn, register_family  # noqa: F401  timm's name

__all__: list[str] = ["FLattenPVT", "FLattenSwin"]


class FLattenPVT(PVT):
    """Focused attention in the bodies of PVT and PVTv2; arguments of `PVT`."""

    attention = FlattenAttention
    unused_norm = True


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

_SWIN_MODELS = {f"flatten_swin_{size}": arguments for size, arguments in SIZES.items()}

default_cfgs = generate_default_cfgs(recorded_cfgs({**_PVT_MODELS, **_SWIN_MODELS}, swin_cfg))

register_family(__name__, FLattenPVT, _PVT_MODELS)
register_family(__name__, FLattenSwin, _SWIN_MODELS)
