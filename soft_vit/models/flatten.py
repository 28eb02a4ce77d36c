"""FLatten: focused linear attention in PVT, PVTv2 and Swin.

Han et al., "FLatten Transformer: Vision Transformer using Focused Linear Attention", ICCV 2023, arXiv 2308.00442. The
attention is in `soft_vit/layers/attention/focused.py`.
"""

from dataclasses import replace
from typing import Any

from soft_vit.layers.attention.focused import FlattenAttention
from soft_vit.models.base import register_family
from soft_vit.models.pvt import PVT, PVT_SIZES, unused_norm
from soft_vit.models.swin import SWIN_SIZES, Swin, swin_cfg

__all__: list[str] = ["FLattenPVT", "FLattenSwin"]


class FLattenPVT(PVT):
    """Focused attention in PVT and PVTv2; arguments of `PVT`."""

    attention = FlattenAttention
    adapter = replace(PVT.adapter, computed=unused_norm)


class FLattenSwin(Swin):
    """Focused attention in Swin; arguments of `Swin`."""

    attention = FlattenAttention


PVT_MODELS: dict[str, dict[str, Any]] = {
    **{f"flatten_pvt_{size}": arguments for size, arguments in PVT_SIZES.items()},
    "flatten_pvt_v2_b0": dict(PVT_SIZES["tiny"], overlap=True, embed_dims=(32, 64, 160, 256)),
    **{f"flatten_pvt_v2_b{i}": dict(arguments, overlap=True) for i, arguments in enumerate(PVT_SIZES.values(), 1)},
    "flatten_pvt_v2_b5": dict(PVT_SIZES["large"], overlap=True, depths=(3, 6, 40, 3), mlp_ratios=(4, 4, 4, 4)),
}
SWIN_MODELS = {f"flatten_swin_{size}": arguments for size, arguments in SWIN_SIZES.items()}

register_family(FLattenPVT, PVT_MODELS, cfg=swin_cfg, paper_ids="arXiv:2308.00442")
register_family(FLattenSwin, SWIN_MODELS, cfg=swin_cfg, paper_ids="arXiv:2308.00442")
