"""Softmax-free vision transformers for timm and MMEngine; importing the package registers its models with timm."""

from soft_vit import models
from soft_vit.functional import FUNCTIONAL_KINDS, attention, varlen_attention
from soft_vit.layers.choice import Choice, choose_attention
from soft_vit.layers.vit_attention import attn_layer
from soft_vit.models.swap import swap_attention
from soft_vit.version import __version__

__all__ = [
    "FUNCTIONAL_KINDS",
    "Choice",
    "__version__",
    "attention",
    "attn_layer",
    "choose_attention",
    "models",
    "swap_attention",
    "varlen_attention",
]
