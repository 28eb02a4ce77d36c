"""PolaFormer: polarity-aware linear attention in PVT and Swin.

Meng et al., "PolaFormer: Polarity-aware Linear Attention for Vision Transformers", ICLR 2025, arXiv 2501.15061. The
attention is in `soft_vit/layers/attention/polaformer.py`.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from soft_vit.layers.attention.polaformer import PolaFormerAttention
from soft_vit.models.base import make_default_cfgs, register_models
from soft_vit.models.pvt import PVT, PVT_SIZES, unused_norm
from soft_vit.models.swin import SWIN_SIZES, Swin, swin_cfg

__all__: list[str] = ["PolaFormerPVT", "PolaFormerSwin"]


class PolaFormerPVT(PVT):
    """Polarity-aware attention in PVT; arguments of `PVT`."""

    attention = PolaFormerAttention
    adapter = replace(PVT.adapter, projections=(("qg", "kv"), ("qkv", "g")), computed=unused_norm)


class PolaFormerSwin(Swin):
    """Polarity-aware attention in Swin; arguments of `Swin`."""

    attention = PolaFormerAttention
    adapter = replace(Swin.adapter, projections=(("qkvg",), ("qkv", "g")))


POLAFORMER_MODELS: dict[str, dict[str, Any]] = {
    **{f"pola_pvt_{size}": arguments for size, arguments in PVT_SIZES.items()},
    **{f"pola_swin_{size}": arguments for size, arguments in SWIN_SIZES.items()},
}

default_cfgs = make_default_cfgs(POLAFORMER_MODELS, partial(swin_cfg, paper_ids="arXiv:2501.15061"))

register_models(PolaFormerPVT, POLAFORMER_MODELS, prefix="pola_pvt")
register_models(PolaFormerSwin, POLAFORMER_MODELS, prefix="pola_swin")
