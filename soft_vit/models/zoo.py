"""Families with released weights: their models by name, and which of them weights belong to."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import timm
from torch import Tensor, nn

from soft_vit.models.checkpoint import Recognised, recognise, rename_released
from soft_vit.models.entrypoints import register_entrypoints
from soft_vit.models.vit import VIT_MODELS
from soft_vit.weights.load import build_model, describe_mismatch
from soft_vit.weights.read import NotedWeights, unwrap_state_dict

if TYPE_CHECKING:
    from soft_vit.models.staged import StagedModel

__all__ = [
    "ZOO",
    "belongs_to",
    "checkpoint_filter_fn",
    "model_on_meta",
    "recognise_weights",
    "refuse_other_models",
    "register_family",
]

ZOO: dict[str, type["StagedModel"]] = {}
"""Every named model of the families, and its class."""


def register_family(
    module: str, cls: type["StagedModel"], models: Mapping[str, dict[str, Any]], out_indices: Any = (0, 1, 2, 3)
) -> None:
    """Register the models of a family with timm; see `register_entrypoints`.

    models: the arguments of `cls` for every name. out_indices: of `features_only`, by default.
    """

    def create(name: str, pretrained: bool, **kwargs: Any) -> nn.Module:
        feature_cfg = dict(out_indices=out_indices, feature_cls="getter")
        return build_model(cls, name, pretrained, feature_cfg=feature_cfg, **{**models[name], **kwargs})

    ZOO.update(dict.fromkeys(models, cls))
    register_entrypoints(module, models, cls, create)


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: "StagedModel") -> dict[str, Tensor]:
    """Released or converted weights as a state dict of model; converted weights pass unchanged.

    Raises ValueError for weights of another model of the zoo. timm adapts a head for other classes and a first
    convolution for other channels.
    """
    given = unwrap_state_dict(state_dict)
    weights = model.convert_state_dict(given)
    refuse_other_models(given, weights, model)
    return NotedWeights(weights, given.notes)


def refuse_other_models(given: Mapping[str, Tensor], converted: Mapping[str, Tensor], model: "StagedModel") -> None:
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
def model_on_meta(name: str, img_size: tuple[int, int] | None = None) -> "StagedModel":
    """A model of the zoo without memory for its weights; nobody may change it. img_size: by default its own."""
    return cast("StagedModel", timm.create_model(name, device="meta", img_size=img_size))


def _mismatch(weights: Mapping[str, Tensor], model: "StagedModel") -> str:
    """Names and shapes in which weights differ from a model, but for its head and the channels of its images."""
    cfg = getattr(model, "pretrained_cfg", {})
    head = f"{cfg.get('classifier', 'head')}."
    first = f"{cfg.get('first_conv')}.weight"
    expected = {name: value for name, value in model.state_dict().items() if not name.startswith(head)}
    compared = {name: value for name, value in weights.items() if not name.startswith(head)}
    if first in expected and first in compared and compared[first].shape[2:] == expected[first].shape[2:]:
        expected[first], compared[first] = expected[first][:, :1], compared[first][:, :1]
    return describe_mismatch(expected, compared)
