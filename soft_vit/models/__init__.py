"""The pyramid and its variants, registered in timm on import."""

from soft_vit.models import soft
from soft_vit.models.checkpoint import checkpoint_filter_fn, load_weights
from soft_vit.models.pyramid import PyramidViT
from soft_vit.models.soft import *  # noqa: F403 - the entrypoints, which register_model lists in __all__

__all__ = ["PyramidViT", "checkpoint_filter_fn", "load_weights", *soft.__all__]
