"""PolaFormer: polarity-aware linear attention in PVT and Swin.

Meng et al., "PolaFormer: Polarity-aware Linear Attention for Vision Transformers", ICLR 2025, arXiv 2501.15061. The
attention is in `soft_vit/layers/attention/polaformer.py`.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from timm.models import register_model
from torch import nn

from soft_vit.layers.attention.polaformer import PolaFormerAttention
from soft_vit.models.base import create_staged, make_default_cfgs
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


def _create_pvt(name: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    return create_staged(PolaFormerPVT, name, pretrained, POLAFORMER_MODELS[name], **kwargs)


def _create_swin(name: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    return create_staged(PolaFormerSwin, name, pretrained, POLAFORMER_MODELS[name], **kwargs)


@register_model
def pola_pvt_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PolaFormer in PVT, tiny; keyword arguments of `PolaFormerPVT`."""
    return _create_pvt("pola_pvt_tiny", pretrained, **kwargs)


@register_model
def pola_pvt_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PolaFormer in PVT, small; keyword arguments of `PolaFormerPVT`."""
    return _create_pvt("pola_pvt_small", pretrained, **kwargs)


@register_model
def pola_pvt_medium(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PolaFormer in PVT, medium; keyword arguments of `PolaFormerPVT`."""
    return _create_pvt("pola_pvt_medium", pretrained, **kwargs)


@register_model
def pola_pvt_large(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PolaFormer in PVT, large; keyword arguments of `PolaFormerPVT`."""
    return _create_pvt("pola_pvt_large", pretrained, **kwargs)


@register_model
def pola_swin_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PolaFormer in Swin, tiny; keyword arguments of `PolaFormerSwin`."""
    return _create_swin("pola_swin_tiny", pretrained, **kwargs)


@register_model
def pola_swin_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PolaFormer in Swin, small; keyword arguments of `PolaFormerSwin`."""
    return _create_swin("pola_swin_small", pretrained, **kwargs)


@register_model
def pola_swin_base(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PolaFormer in Swin, base; keyword arguments of `PolaFormerSwin`."""
    return _create_swin("pola_swin_base", pretrained, **kwargs)


@register_model
def pola_swin_base_384(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PolaFormer in Swin, base, images of 384 pixels; keyword arguments of `PolaFormerSwin`."""
    return _create_swin("pola_swin_base_384", pretrained, **kwargs)
