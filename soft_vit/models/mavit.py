"""MAViT: magnitude-aware linear attention in two stages, softmax attention in two (`mavit_{t,s,b,l}`).

Fan et al., "Rectifying Magnitude Neglect in Linear Attention", ICCV 2025, arXiv 2507.00698. The network is
RAVLT with another linear attention and a wider layer before the head.
"""

from typing import Any

from soft_vit.layers.attention.mala import MALAttention
from soft_vit.models.base import register_family
from soft_vit.models.ravlt import RAVLT, RAVLT_MODELS

# `register_family` adds the entrypoints.
__all__ = ["MAViT"]


class MAViT(RAVLT):
    """Four stages: magnitude-aware linear attention in the first two, softmax attention in the last; see `RAVLT`."""

    linear_attention = MALAttention


MAVIT_MODELS: dict[str, dict[str, Any]] = {
    name.replace("ravlt", "mavit"): dict(arguments, proj_width=2560 if name == "ravlt_l" else 2048)
    for name, arguments in RAVLT_MODELS.items()
}

register_family(MAViT, MAVIT_MODELS, first_conv="patch_embed.proj.0", paper_ids="arXiv:2507.00698")
