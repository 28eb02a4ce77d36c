"""MAViT: magnitude-aware linear attention in two stages, softmax attention in two (`mavit_{t,s,b,l}`).

Fan et al., "Rectifying Magnitude Neglect in Linear Attention", ICCV 2025, arXiv 2507.00698. The net is that of RAVLT
but for the linear attention and a wider layer before the head.
"""

from typing import Any

from timm.models import generate_default_cfgs

from soft_vit.layers.attention.mala import MALAttention
from soft_vit.models import ravlt
from soft_vit.models.entrypoints import imagenet_cfg, recorded_cfgs
from soft_vit.models.staged import checkpoint_filter_fn  # noqa: F401  timm's name for the filter
from soft_vit.models.zoo import register_family

# `register_family` adds the entrypoints.
__all__ = ["MAViT"]


class MAViT(ravlt.RAVLT):
    """Four stages: magnitude-aware linear attention in the first two, softmax attention in the last; see `RAVLT`."""

    linear_attention = MALAttention


MODELS: dict[str, dict[str, Any]] = {
    name.replace("ravlt", "mavit"): dict(arguments, proj_width=2560 if name == "ravlt_l" else 2048)
    for name, arguments in ravlt.MODELS.items()
}

default_cfgs = generate_default_cfgs(
    recorded_cfgs(MODELS, lambda name: imagenet_cfg(first_conv="patch_embed.proj.0", paper_ids="arXiv:2507.00698"))
)

register_family(__name__, MAViT, MODELS)
