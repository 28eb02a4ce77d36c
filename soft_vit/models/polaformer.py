"""PolaFormer: polarity-aware linear attention in PVT and Swin.

Meng et al., "PolaFormer: Polarity-aware Linear Attention for Vision Transformers", ICLR 2025, arXiv 2501.15061. The
attention is in `soft_vit/layers/attention/polaformer.py`.
"""

from dataclasses import replace

from soft_vit.layers.attention.polaformer import PolaFormerAttention
from soft_vit.models.base import register_family
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


for _cls, _name, _sizes in ((PolaFormerPVT, "pvt", PVT_SIZES), (PolaFormerSwin, "swin", SWIN_SIZES)):
    _models = {f"pola_{_name}_{size}": arguments for size, arguments in _sizes.items()}
    register_family(_cls, _models, cfg=swin_cfg, paper_ids="arXiv:2501.15061")
