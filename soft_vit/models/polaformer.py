"""PolaFormer: polarity-aware linear attention in the bodies of PVT and Swin.

Meng et al., "PolaFormer: Polarity-aware Linear Attention for Vision Transformers", ICLR 2025, arXiv 2501.15061. What
the attention computes stands in `soft_vit/layers/attention/polaformer.py`.
"""

from collections.abc import Mapping
from typing import Any

from timm.models import generate_default_cfgs
from torch import Tensor

from soft_vit.layers.attention.polaformer import PolaFormerAttention
from soft_vit.models.pvt import PVT, restacked
from soft_vit.models.swin import Swin
from soft_vit.models.zoo import checkpoint_filter_fn, family_cfgs, register_family  # noqa: F401  timm's name

__all__: list[str] = ["PolaFormerPVT", "PolaFormerSwin"]

_LAYERS = ("qkv", "g")


class PolaFormerPVT(PVT):
    """Polarity-aware attention in the body of PVT; arguments of `PVT`."""

    attention = PolaFormerAttention
    released_layers = ("qg", "kv")
    layers_here = _LAYERS


class PolaFormerSwin(Swin):
    """Polarity-aware attention in the body of Swin; arguments of `Swin`."""

    attention = PolaFormerAttention

    def convert_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return super().convert_state_dict(restacked(state_dict, ("qkvg",), _LAYERS))

    def released_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return restacked(super().released_state_dict(state_dict), _LAYERS, ("qkvg",))


_PVT = dict(embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4))
_PVT_MODELS: dict[str, dict[str, Any]] = {
    "pola_pvt_tiny": dict(_PVT, depths=(2, 2, 2, 2)),
    "pola_pvt_small": dict(_PVT, depths=(3, 4, 6, 3)),
    "pola_pvt_medium": dict(_PVT, depths=(3, 4, 18, 3)),
    "pola_pvt_large": dict(_PVT, depths=(3, 8, 27, 3)),
}

_SWIN = dict(embed_dims=(96, 192, 384, 768), num_heads=(3, 6, 12, 24), linear_blocks=(2, 2, 0, 0))
_SWIN_BASE = dict(_SWIN, embed_dims=(128, 256, 512, 1024), num_heads=(4, 8, 16, 32), depths=(2, 2, 18, 2))
_SWIN_MODELS: dict[str, dict[str, Any]] = {
    "pola_swin_tiny": dict(_SWIN, depths=(2, 2, 6, 2)),
    "pola_swin_small": dict(_SWIN, depths=(2, 2, 18, 2)),
    "pola_swin_base": _SWIN_BASE,
    "pola_swin_base_384": dict(_SWIN_BASE, window_size=96),
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

register_family(__name__, PolaFormerPVT, _PVT_MODELS)
register_family(__name__, PolaFormerSwin, _SWIN_MODELS)
