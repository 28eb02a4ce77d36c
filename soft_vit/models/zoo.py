"""Families with released weights: their models by name, and which of them weights belong to."""

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import timm
from torch import Tensor

from soft_vit.models.base import StagedModel
from soft_vit.models.checkpoint import Recognised, recognise, rename_released
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
from soft_vit.models.vit import VIT_MODELS
from soft_vit.models.vit3 import H_VITTT_MODELS, VITTT_MODELS, HViTTT, ViTTT
from soft_vit.weights.load import describe_mismatch
from soft_vit.weights.read import NotedWeights

__all__ = [
    "ZOO",
    "belongs_to",
    "model_on_meta",
    "recognise_weights",
    "refuse_other_models",
]

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


def refuse_other_models(given: Mapping[str, Tensor], converted: Mapping[str, Tensor], model: StagedModel) -> None:
    """ValueError that names the model of this package that weights belong to, if they fit it and not this one.

    given: the weights as they are in a file; converted: as the model takes them.
    """
    if not _mismatch(converted, model):
        return
    name = getattr(model, "pretrained_cfg", {}).get("architecture")
    if name in ZOO:
        # The model may have lost or gained modules since it was made.
        whole = model_on_meta(name)
        if not _mismatch(whole.convert_state_dict(given), whole):
            return
    right = belongs_to(given) or _pyramid_of(given)
    if right is None:
        return
    raise ValueError(f"The checkpoint is of {right} and not of {name or 'this model'}; create {right} for it.")


def recognise_weights(given: Mapping[str, Tensor]) -> tuple[Recognised | str, dict[str, Tensor]]:
    """The pyramid, or the name of the ViT or the model of the zoo, that weights belong to, and they under its names.

    A ViT is recognised by what a file notes. ValueError for weights of none of them.
    """
    noted = given.notes.model if isinstance(given, NotedWeights) else None
    if noted in VIT_MODELS:
        return noted, dict(given)
    try:
        return recognise(given), {rename_released(name): value for name, value in given.items()}
    except ValueError:
        name = belongs_to(given)
        if name is None:
            raise
        return name, model_on_meta(name).own_state_dict(given)


def belongs_to(weights: Mapping[str, Tensor]) -> str | None:
    """The model of the zoo that weights fit by names and shapes, a head for any classes and images of any channels.

    Weights that note no size of images may be of any square one.
    """
    img_size = weights.notes.img_size() if isinstance(weights, NotedWeights) else None
    seen, unlike = set(), set()
    for name, cls in ZOO.items():
        if cls in unlike:
            continue
        model = model_on_meta(name, img_size)
        converted, own = model.convert_state_dict(weights), model.state_dict().keys()
        # The first of a class is its smallest, and its names are in all others.
        if cls not in seen and 2 * len(own & converted.keys()) < len(own):
            unlike.add(cls)
        elif not _mismatch(converted, model):
            return name
        seen.add(cls)
    return None


def _pyramid_of(weights: Mapping[str, Tensor]) -> str | None:
    """The names of the pyramids that weights may belong to."""
    try:
        size = recognise(weights).size
    except ValueError:
        return None
    return f"soft_{size} or soft_norm_{size}" if size else "a soft_vit pyramid"


@cache
def model_on_meta(name: str, img_size: tuple[int, int] | None = None) -> StagedModel:
    """A model of the zoo without memory for its weights; nobody may change it. img_size: by default its own."""
    return cast(StagedModel, timm.create_model(name, device="meta", img_size=img_size))


def _mismatch(weights: Mapping[str, Tensor], model: StagedModel) -> str:
    """Names and shapes in which weights differ from a model, but for its head and the channels of its images."""
    cfg = getattr(model, "pretrained_cfg", {})
    head = f"{cfg.get('classifier', 'head')}."
    first = f"{cfg.get('first_conv')}.weight"
    expected = {name: value for name, value in model.state_dict().items() if not name.startswith(head)}
    compared = {name: value for name, value in weights.items() if not name.startswith(head)}
    if first in expected and first in compared and compared[first].shape[2:] == expected[first].shape[2:]:
        expected[first], compared[first] = expected[first][:, :1], compared[first][:, :1]
    return describe_mismatch(expected, compared)
