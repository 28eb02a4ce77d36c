"""PolaFormer: polarity-aware linear attention in the bodies of PVT and Swin.

Meng et al., "PolaFormer: Polarity-aware Linear Attention for Vision Transformers", ICLR 2025, arXiv 2501.15061. What
the attention computes stands in `soft_vit/layers/attention/polaformer.py`.
"""

from collections.abc import Mapping
from typing import Any

from timm.models import generate_default_cfgs
from torch import Tensor

from soft_vit.layers.attention.polaformer import PolaFormerAttention
from soft_vit.models.entrypoints import recorded_cfgs
from soft_vit.models.pvt import PVT, restacked
from soft_vit.models.swin import SIZES, Swin, swin_cfg
from soft_vit.models.zoo import checkpoint_filter_fn, register_family  # noqa: F401  timm's name

__all__: list[str] = ["PolaFormerPVT", "PolaFormerSwin"]

_LAYERS = ("qkv", "g")


class PolaFormerPVT(PVT):
    """Polarity-aware attention in the body of PVT; arguments of `PVT`."""

    attention = PolaFormerAttention
    unused_norm = True
    released_layers = ("qg", "kv")
    layers_here = _LAYERS


class PolaFormerSwin(Swin):
    """Polarity-aware attention in the body of Swin; arguments of `Swin`."""

    attention = PolaFormerAttention

    def own_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return super().own_state_dict(restacked(state_dict, ("qkvg",), _LAYERS))

    def released_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return restacked(super().released_state_dict(state_dict), _LAYERS, ("qkvg",))


_PVT = dict(embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4))
_PVT_MODELS: dict[str, dict[str, Any]] = {
    "pola_pvt_tiny": dict(_PVT, depths=(2, 2, 2, 2)),
    "pola_pvt_small": dict(_PVT, depths=(3, 4, 6, 3)),
    "pola_pvt_medium": dict(_PVT, depths=(3, 4, 18, 3)),
    "pola_pvt_large": dict(_PVT, depths=(3, 8, 27, 3)),
}

_SWIN_MODELS = {f"pola_swin_{size}": arguments for size, arguments in SIZES.items()}

default_cfgs = generate_default_cfgs(recorded_cfgs({**_PVT_MODELS, **_SWIN_MODELS}, swin_cfg))

register_family(__name__, PolaFormerPVT, _PVT_MODELS)
register_family(__name__, PolaFormerSwin, _SWIN_MODELS)
