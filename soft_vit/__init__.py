"""Softmax-free vision transformers for timm and MMEngine; importing the package registers its models with timm."""

from collections.abc import Iterable
from typing import Any

from soft_vit import models
from soft_vit.functional import FUNCTIONAL_KINDS, attention, varlen_attention
from soft_vit.layers.choice import Choice, choose_attention
from soft_vit.layers.vit_attention import attn_layer
from soft_vit.models.register import register_attention
from soft_vit.models.swap import SwapReport
from soft_vit.models.swap import swap_attention as _swap_attention
from soft_vit.version import __version__

__all__ = [
    "FUNCTIONAL_KINDS",
    "Choice",
    "__version__",
    "attention",
    "attn_layer",
    "choose_attention",
    "models",
    "register_attention",
    "swap_attention",
    "varlen_attention",
]


def swap_attention(model: Any, kind: str, blocks: Iterable[int] | None = None, **options: Any) -> SwapReport:
    """Replace the attention of one of timm's or transformers' ViTs, in place.

    See `soft_vit.models.swap.swap_attention` and `soft_vit.hf.swap_attention`, which raise ValueError for an unknown
    attention or option, or a model of another form.
    """
    # A compiled model wraps the one that computes.
    model = getattr(model, "_orig_mod", model)
    if any(cls.__module__.startswith("transformers.") for cls in type(model).__mro__):
        from soft_vit import hf

        return hf.swap_attention(model, kind, blocks, **options)
    return _swap_attention(model, kind, blocks, **options)
