"""Weights of pyramids: whose they are, under which names, and resampled to a model's grids."""

import math
import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from soft_vit.layers import resample_pos_embed
from soft_vit.models.base import stage_grids
from soft_vit.models.names import PYRAMID_MODELS, size_name
from soft_vit.models.stage import PyramidStage
from soft_vit.weights.read import Notes, unwrap_state_dict

if TYPE_CHECKING:
    from soft_vit.models.pyramid import PyramidViT

__all__ = [
    "RELEASED_MODULES",
    "Recognised",
    "checkpoint_filter_fn",
    "fit_state_dict",
    "noted_attention",
    "recognise",
    "rename_released",
]

RELEASED_MODULES = {
    "att.mha.W_q.": "attn.q.",
    "att.mha.W_v.": "attn.v.",
    "att.mha.attn.Qlandmark_op.": "attn.sample.",
    "att.mha.attn.Qnorm_act.0.": "attn.sample_norm.",
    "att.mha.attn.conv.": "attn.local.",
    "att.mha.ff.": "attn.proj.",
    "att.norm": "norm",
    "att.ff": "mlp.fc",
}
"""Names of the released SOFT implementation (first match of each kind), and ours."""


@dataclass(frozen=True)
class Recognised:
    """A pyramid by its sizes: blocks and channels of every stage."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def size(self) -> str | None:
        """The name of the size in `PYRAMID_SIZES`, or None."""
        return size_name(self.widths, self.depths)

    def __str__(self) -> str:
        numbers = f"depths {' '.join(map(str, self.depths))} and widths {' '.join(map(str, self.widths))}"
        return f"size {self.size!r} with {numbers}" if self.size else f"an unnamed size with {numbers}"


def recognise(given: Mapping[str, Tensor]) -> Recognised:
    """The pyramid that weights, released or this package's, belong to; ValueError if they belong to none."""
    state_dict = {rename_released(name): value for name, value in given.items()}
    blocks = [re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", name) for name in state_dict]
    indices = {(int(match[1]), int(match[2])) for match in blocks if match}
    num_stages = 1 + max((stage for stage, _ in indices), default=-1)
    embeddings = [f"stages.{i}.pos_embed" for i in range(num_stages)]
    if not indices or not {"stages.0.patch_embed.0.conv.weight", *embeddings} <= state_dict.keys():
        example = next(iter(given))
        raise ValueError(
            f"The checkpoint is not of a soft_vit pyramid (its first parameter is {example!r}); "
            f"give weights of this package or of the released SOFT implementation."
        )
    return Recognised(
        depths=tuple(sum(stage == i for stage, _ in indices) for i in range(num_stages)),
        widths=tuple(state_dict[name].shape[-1] for name in embeddings),
    )


def noted_attention(notes: Notes) -> str | None:
    """The attention of the first stages, if a file notes it; weights of `soft` and `soft_norm` look alike."""
    attention = notes.options.get("attention", PYRAMID_MODELS.get(notes.model or "", {}).get("attention"))
    return attention if isinstance(attention, str) else None


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: "PyramidViT") -> dict[str, Tensor]:
    """Released or converted weights as a state dict of model; converted weights pass unchanged.

    Position embeddings, and weights of attentions that fix their map, are resampled to the model's grids. Raises
    ValueError for weights of another model: other depths or widths, unknown names, or another attention or form than
    the file notes. timm adapts a head for other classes and a first convolution for other channels.
    """
    given = unwrap_state_dict(state_dict)
    weights = {rename_released(name): value for name, value in given.items()}
    found = check_same_model(given, model)
    form_is_known = check_notes(given.notes, found, model)
    # timm passes on the image size that it noted beside a model it saved.
    noted = given.notes.img_size()
    if noted:
        check_grids(weights, model, noted)
    resample_to_model(weights, model, noted or getattr(model, "pretrained_model_args", {}).get("img_size"))
    own = model.state_dict()
    adapted_later = {"head.weight", "head.bias", "stages.0.patch_embed.0.conv.weight"}
    for name, value in weights.items():
        if name in own and value.shape != own[name].shape and name not in adapted_later:
            # The window of a convolution that samples num_bottleneck tokens follows from the map.
            size = ", and their img_size as bottleneck_img_size" if name.endswith("attn.sample.weight") else ""
            raise ValueError(
                f"{name} has shape {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model; "
                f"create the model with the options that the weights were trained with{size}."
            )
    fitted = OrderedDict(weights)
    if form_is_known:
        # As in a state dict of the model itself, for `fit_state_dict`.
        options = {"reversible": _is_reversible(model), "img_size": model.img_size}
        fitted._metadata = {"": {"options": options}}  # type: ignore[attr-defined]  # torch's name for it
    return fitted


def fit_state_dict(
    state_dict: Mapping[str, Any], model: "PyramidViT", options: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """A state dict for model's `load_state_dict`: released names as ours, weights of another image size resampled.

    options: of the model that the weights are from, if known. A UserWarning says if they are of the other form of
    `reversible`, which computes something else, or if nothing tells whether they fit a reversible model.
    Returns state_dict itself if neither is needed; torch reports other differences. Raises ValueError for released
    weights of other depths or widths, and for position embeddings of another map that is not square.
    """
    notes = Notes(options=options or {})
    if _is_reversible(model) and "reversible" not in notes.options:
        warnings.warn(
            "The weights have no record of their form, and the model has reversible=True; they are right only if they "
            "were trained with it.",
            stacklevel=4,
        )
    elif notes.options.get("reversible", False) != _is_reversible(model):
        warnings.warn(_other_form(model), stacklevel=4)
    if "pos_embed1" in state_dict:
        check_same_model(state_dict, model)
        state_dict = {rename_released(name): value for name, value in state_dict.items()}
    for i, stage in enumerate(model.stages):
        shape: tuple[int, ...] = getattr(state_dict.get(f"stages.{i}.pos_embed"), "shape", ())
        own, size = stage.pos_embed.shape, notes.img_size()
        other_grid = size is not None and stage_grids(size, i + 1)[i] != stage.grid_size
        # Of the same width, a position embedding of another length is that of another map.
        if len(shape) == 3 and (shape != own or other_grid) and shape[2] == own[2]:
            state_dict = dict(state_dict)
            resample_to_model(state_dict, model, size)
            break
    return state_dict


def rename_released(name: str) -> str:
    """Our name for a parameter of the released implementation; any other name is returned as it is."""
    if match := re.match(r"pos_embed(\d)$", name):
        return f"stages.{int(match[1]) - 1}.pos_embed"
    if name == "cls_token":
        return "stages.3.cls_token"
    if match := re.match(r"patch_embed(\d)\.proj\.(\d)\.(.+)", name):
        # Every unit is convolution, norm, activation: three indices.
        unit, part = divmod(int(match[2]), 3)
        return f"stages.{int(match[1]) - 1}.patch_embed.{unit}.{('conv', 'norm')[part]}.{match[3]}"
    if match := re.match(r"block(\d)\.(\d+)\.(.+)", name):
        rest = match[3]
        for theirs, ours in RELEASED_MODULES.items():
            if rest.startswith(theirs):
                rest = ours + rest.removeprefix(theirs)
                break
        return f"stages.{int(match[1]) - 1}.blocks.{match[2]}.{rest}"
    return name


def check_same_model(given: Mapping[str, Tensor], model: "PyramidViT") -> Recognised:
    """What the weights are of; ValueError, naming both, if they have other depths or widths than model.

    given: the weights under the names of their file, some of which other released models have too.
    """
    # The zoo recognises pyramids too.
    from soft_vit.models.zoo import belongs_to

    try:
        found = recognise(given)
    except ValueError:
        right = belongs_to(given)
        if right is None:
            raise
        message = f"The checkpoint is of {right} and the model {_name(model)}is a pyramid; create {right} for it."
        raise ValueError(message) from None
    own = Recognised(tuple(model.depths), tuple(model.embed_dims))
    kept = len(model.stages)
    if (found.depths[:kept], found.widths[:kept]) != (own.depths[:kept], own.widths[:kept]):
        raise ValueError(f"The checkpoint is of {found} and the model {_name(model)}is {own}; {_advice(found)}.")
    return found


def check_notes(notes: Notes, found: Recognised, model: "PyramidViT") -> bool:
    """Whether it is known that the weights were trained in the model's form of `reversible`.

    ValueError, naming both, if they were trained in another form of the model that has the same parameters.
    """
    named, own = noted_attention(notes), model.attention[0]
    if named is not None and {named, own} == {"soft", "soft_norm"}:
        right = f"{named}_{found.size or '<size>'}"
        raise ValueError(
            f"The checkpoint is of {right}, by what is noted in it, and the model {_name(model)}has the attention "
            f"{own!r}; create {right} for it."
        )
    # Nothing is known of a file that names neither its model nor this option.
    trained = notes.options.get("reversible", None if notes.model is None else False)
    if trained is not None and trained != _is_reversible(model):
        raise ValueError(f"{_other_form(model)}.")
    return trained is not None


def check_grids(state_dict: Mapping[str, Tensor], model: "PyramidViT", img_size: tuple[int, int]) -> None:
    """ValueError if the position embeddings have other lengths than those of the image size that a file notes."""
    for i, (height, width) in enumerate(stage_grids(img_size, len(model.stages))):
        name = f"stages.{i}.pos_embed"
        count = state_dict[name].shape[1] if name in state_dict else None
        # One more is a class token.
        if count is not None and count not in (height * width, height * width + 1):
            raise ValueError(
                f"{name} has {count} positions, and the file notes images of {img_size[0]} x {img_size[1]}, whose map "
                f"has {height * width}; correct the note, or remove it."
            )


def resample_to_model(
    state_dict: MutableMapping[str, Tensor], model: "PyramidViT", img_size: tuple[int, int] | None = None
) -> None:
    """Resample, in state_dict, position embeddings and weights of attentions that fix their map to model's grids.

    img_size: of the model that the weights are from, if known; otherwise grids are taken to be square.
    """
    for i, stage in enumerate(model.stages):
        name = f"stages.{i}.pos_embed"
        grid = stage_grids(img_size, i + 1)[-1] if img_size else None
        prefix, given = stage.num_prefix_tokens, state_dict.get(name)
        if given is not None and grid and given.shape[1] == prefix + grid[0] * grid[1]:
            state_dict[name] = resample_pos_embed(given, grid, stage.grid_size, prefix)
        elif given is not None and given.shape != stage.pos_embed.shape:
            state_dict[name] = resample_to_stage(given, stage, name)
        for j, block in enumerate(stage.blocks):
            attention: Any = block.attn
            attention.resample_state(f"stages.{i}.blocks.{j}.attn.", state_dict)


def resample_to_stage(pos_embed: Tensor, stage: PyramidStage, name: str) -> Tensor:
    """A position embedding of a square grid `[1, P + n*n, C]`, resampled to the stage's grid."""
    prefix = stage.num_prefix_tokens
    count = pos_embed.shape[1] - prefix
    side = math.isqrt(count)
    if side * side != count:
        # The grid of a model that is like this one but for its class token.
        other = pos_embed.shape[1] - (1 - prefix)
        if math.isqrt(other) ** 2 == other:
            raise ValueError(
                f"{name} has the positions of a square grid {'without' if prefix else 'and'} a class token, and the "
                f"model has {'one' if prefix else 'none'}; create the model with class_token={not prefix}."
            )
        raise ValueError(
            f"{name} has {count} positions, which is not a square grid, and the model has {stage.grid_size[0]} x "
            f"{stage.grid_size[1]}; create the model with the img_size that the weights were trained with."
        )
    return resample_pos_embed(pos_embed, (side, side), stage.grid_size, prefix)


def _is_reversible(model: "PyramidViT") -> bool:
    return any(stage.reversible for stage in model.stages)


def _other_form(model: "PyramidViT") -> str:
    own = _is_reversible(model)
    return (
        f"The weights were trained with reversible={not own}, and the model {_name(model)}has reversible={own}, which "
        f"computes something else with the same parameters; create it with reversible={not own}"
    )


def _name(model: "PyramidViT") -> str:
    name = getattr(model, "pretrained_cfg", {}).get("architecture")
    return f"{name} " if name else ""


def _advice(found: Recognised) -> str:
    if found.size is None:
        return "create the model with these depths and embed_dims"
    released = " (the released code calls it soft_small)" if found.size == "base" else ""
    return f"create soft_{found.size} or soft_norm_{found.size}{released} for it"
