"""FLatten: focused linear attention in PVT, PVTv2 and Swin.

Han et al., "FLatten Transformer: Vision Transformer using Focused Linear Attention", ICCV 2023, arXiv 2308.00442. The
attention is in `soft_vit/layers/attention/focused.py`.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from timm.models import register_model
from torch import nn

from soft_vit.layers.attention.focused import FlattenAttention
from soft_vit.models.base import create_staged, make_default_cfgs
from soft_vit.models.pvt import PVT, PVT_SIZES, unused_norm
from soft_vit.models.swin import SWIN_SIZES, Swin, swin_cfg

__all__: list[str] = ["FLattenPVT", "FLattenSwin"]


class FLattenPVT(PVT):
    """Focused attention in PVT and PVTv2; arguments of `PVT`."""

    attention = FlattenAttention
    adapter = replace(PVT.adapter, computed=unused_norm)


class FLattenSwin(Swin):
    """Focused attention in Swin; arguments of `Swin`."""

    attention = FlattenAttention


FLATTEN_MODELS: dict[str, dict[str, Any]] = {
    **{f"flatten_pvt_{size}": arguments for size, arguments in PVT_SIZES.items()},
    "flatten_pvt_v2_b0": dict(PVT_SIZES["tiny"], overlap=True, embed_dims=(32, 64, 160, 256)),
    "flatten_pvt_v2_b1": dict(PVT_SIZES["tiny"], overlap=True),
    "flatten_pvt_v2_b2": dict(PVT_SIZES["small"], overlap=True),
    "flatten_pvt_v2_b3": dict(PVT_SIZES["medium"], overlap=True),
    "flatten_pvt_v2_b4": dict(PVT_SIZES["large"], overlap=True),
    "flatten_pvt_v2_b5": dict(PVT_SIZES["large"], overlap=True, depths=(3, 6, 40, 3), mlp_ratios=(4, 4, 4, 4)),
    **{f"flatten_swin_{size}": arguments for size, arguments in SWIN_SIZES.items()},
}

default_cfgs = make_default_cfgs(FLATTEN_MODELS, partial(swin_cfg, paper_ids="arXiv:2308.00442"))


def _create_pvt(name: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    return create_staged(FLattenPVT, name, pretrained, FLATTEN_MODELS[name], **kwargs)


def _create_swin(name: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    return create_staged(FLattenSwin, name, pretrained, FLATTEN_MODELS[name], **kwargs)


@register_model
def flatten_pvt_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVT, tiny; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_tiny", pretrained, **kwargs)


@register_model
def flatten_pvt_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVT, small; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_small", pretrained, **kwargs)


@register_model
def flatten_pvt_medium(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVT, medium; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_medium", pretrained, **kwargs)


@register_model
def flatten_pvt_large(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVT, large; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_large", pretrained, **kwargs)


@register_model
def flatten_pvt_v2_b0(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVTv2, b0; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_v2_b0", pretrained, **kwargs)


@register_model
def flatten_pvt_v2_b1(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVTv2, b1; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_v2_b1", pretrained, **kwargs)


@register_model
def flatten_pvt_v2_b2(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVTv2, b2; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_v2_b2", pretrained, **kwargs)


@register_model
def flatten_pvt_v2_b3(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVTv2, b3; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_v2_b3", pretrained, **kwargs)


@register_model
def flatten_pvt_v2_b4(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVTv2, b4; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_v2_b4", pretrained, **kwargs)


@register_model
def flatten_pvt_v2_b5(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in PVTv2, b5; keyword arguments of `FLattenPVT`."""
    return _create_pvt("flatten_pvt_v2_b5", pretrained, **kwargs)


@register_model
def flatten_swin_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in Swin, tiny; keyword arguments of `FLattenSwin`."""
    return _create_swin("flatten_swin_tiny", pretrained, **kwargs)


@register_model
def flatten_swin_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in Swin, small; keyword arguments of `FLattenSwin`."""
    return _create_swin("flatten_swin_small", pretrained, **kwargs)


@register_model
def flatten_swin_base(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in Swin, base; keyword arguments of `FLattenSwin`."""
    return _create_swin("flatten_swin_base", pretrained, **kwargs)


@register_model
def flatten_swin_base_384(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FLatten in Swin, base, images of 384 pixels; keyword arguments of `FLattenSwin`."""
    return _create_swin("flatten_swin_base_384", pretrained, **kwargs)
