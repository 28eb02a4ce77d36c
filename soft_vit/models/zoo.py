"""Families with released weights: their models by name."""

from typing import Any

from soft_vit.models.flatten import FLATTEN_PVT_MODELS, FLATTEN_SWIN_MODELS, FLattenPVT, FLattenSwin
from soft_vit.models.inline import (
    INLINE_DEIT_MODELS,
    INLINE_PVT_MODELS,
    INLINE_SWIN_MODELS,
    InLineDeiT,
    InLinePVT,
    InLineSwin,
)
from soft_vit.models.mavit import MAVIT_MODELS, MAViT
from soft_vit.models.mila import MILA, MILA_MODELS
from soft_vit.models.polaformer import POLA_PVT_MODELS, POLA_SWIN_MODELS, PolaFormerPVT, PolaFormerSwin
from soft_vit.models.ravlt import RAVLT, RAVLT_MODELS
from soft_vit.models.vit3 import H_VITTT_MODELS, VITTT_MODELS, HViTTT, ViTTT

__all__ = ["ZOO"]

ZOO: dict[str, type[Any]] = {
    **dict.fromkeys(FLATTEN_PVT_MODELS, FLattenPVT),
    **dict.fromkeys(FLATTEN_SWIN_MODELS, FLattenSwin),
    **dict.fromkeys(INLINE_PVT_MODELS, InLinePVT),
    **dict.fromkeys(INLINE_SWIN_MODELS, InLineSwin),
    **dict.fromkeys(INLINE_DEIT_MODELS, InLineDeiT),
    **dict.fromkeys(MILA_MODELS, MILA),
    **dict.fromkeys(POLA_PVT_MODELS, PolaFormerPVT),
    **dict.fromkeys(POLA_SWIN_MODELS, PolaFormerSwin),
    **dict.fromkeys(RAVLT_MODELS, RAVLT),
    **dict.fromkeys(MAVIT_MODELS, MAViT),
    **dict.fromkeys(VITTT_MODELS, ViTTT),
    **dict.fromkeys(H_VITTT_MODELS, HViTTT),
}
"""Every named model of the families, and its class."""
