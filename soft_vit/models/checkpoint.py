"""Weights made to fit a model: recognised, compared with it, resampled to its grids."""

import math
import warnings
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from timm.models import load_pretrained as timm_load_pretrained
from torch import Tensor, nn

from soft_vit.layers import resample_pos_embed
from soft_vit.models.recognition import Recognised, named_attention, recognise
from soft_vit.models.stage import stage_grids
from soft_vit.models.weight_files import (
    read_checkpoint_file,
    rename_released,
    require_finite,
    state_dict_of,
    unwrap_state_dict,
)

# What timm's configuration has as `custom_load` where weights need not have all names of the model.
LENIENT = "lenient"


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module, strict: bool = True) -> dict[str, Tensor]:
    """Released or converted weights as a state dict of model; harmless on converted ones.

    Position embeddings, and weights of attentions that fix their map, are resampled to the model's grids. ValueError
    when the weights are those of another model: other depths or widths, or names that are not ours. A head for another
    number of classes and a first convolution for other channels pass, because timm adapts them.

    strict: refuse weights that lack names of the model, or have others, too.
    """
    state_dict = state_dict_of(state_dict)
    check_same_model(state_dict, model)
    # timm notes the image size of a model that it saves; position embeddings of any other file must be of a square.
    resample_to_model(state_dict, model, getattr(model, "pretrained_model_args", {}).get("img_size"))
    own = model.state_dict()
    adapted_by_timm = {"head.weight", "head.bias", "stages.0.patch_embed.0.conv.weight"}
    for name, value in state_dict.items():
        if name in own and value.shape != own[name].shape and name not in adapted_by_timm:
            # The window of a convolution that samples num_bottleneck tokens follows from the map.
            size = ", and their img_size as bottleneck_img_size" if name.endswith("attn.sample.weight") else ""
            raise ValueError(
                f"{name} has shape {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model; "
                f"create the model with the options that the weights were trained with{size}."
            )
    if strict:
        check_complete(state_dict, own)
    return state_dict


def fit_state_dict(state_dict: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:
    """A state dict for model's `load_state_dict`: released names as ours, weights of another image size resampled.

    Returns state_dict itself where neither is needed; what fits otherwise or not is torch's to say. Raises ValueError
    for released weights of other depths or widths, and for position embeddings of another map that is not square.
    """
    if "pos_embed1" in state_dict:
        state_dict = {rename_released(name): value for name, value in state_dict.items()}
        check_same_model(state_dict, model)
    for i, stage in enumerate(model.stages):
        given, own = getattr(state_dict.get(f"stages.{i}.pos_embed"), "shape", ()), stage.pos_embed.shape
        # Of the same width, a position embedding of another length is that of another map.
        if len(given) == 3 and given != own and given[2] == own[2]:
            state_dict = dict(state_dict)
            resample_to_model(state_dict, model)
            break
    return state_dict


def check_complete(state_dict: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """ValueError, naming the first, if the weights lack or have names that the model has or lacks, the head apart."""
    lacking = [name for name in own if name not in state_dict and not name.endswith("num_batches_tracked")]
    surplus = [name for name in state_dict if name not in own]
    for names, verb in ((lacking, "lacks"), (surplus, "has")):
        names = [name for name in names if not name.startswith("head.")]
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(
                f"The checkpoint {verb} {names[0]}{more}, unlike the model; create it with the attention and the "
                f"options that the weights were trained with."
            )


def check_same_model(state_dict: Mapping[str, Tensor], model: nn.Module) -> None:
    """ValueError, naming both, if the weights have other depths or widths than model, or are of another family."""
    found, own = recognise(state_dict), Recognised(tuple(model.depths), tuple(model.embed_dims))
    kept = len(model.stages)
    if (found.depths[:kept], found.widths[:kept]) != (own.depths[:kept], own.widths[:kept]):
        raise ValueError(f"The checkpoint is of {found} and the model {_name(model)}is {own}; {advice(found)}.")


def check_same_attention(content: Any, model: nn.Module) -> None:
    """ValueError, naming both, if a checkpoint says that it was trained with the other of soft and soft_norm."""
    named, own = named_attention(content), model.attention[0]
    if named is not None and {named, own} == {"soft", "soft_norm"}:
        found = recognise(state_dict_of(content))
        size = found.size or "<size>"
        raise ValueError(
            f"The checkpoint is of {named}_{size}, by what is noted in it, and the model {_name(model)}has the "
            f"attention {own!r}; create {named}_{size} for it."
        )


def _name(model: nn.Module) -> str:
    name = getattr(model, "pretrained_cfg", {}).get("architecture")
    return f"{name} " if name else ""


def advice(found: Recognised) -> str:
    if found.size is None:
        return "create the model with these depths and embed_dims"
    released = " (the released code calls it soft_small)" if found.size == "base" else ""
    return f"create soft_{found.size} or soft_norm_{found.size}{released} for it"


def resample_to_model(
    state_dict: MutableMapping[str, Tensor], model: nn.Module, img_size: tuple[int, int] | None = None
) -> None:
    """Resample, in state_dict, position embeddings and weights of attentions that fix their map to model's grids.

    img_size: of the model that the weights are from, where it is known.
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
            block.attn.resample_state(f"stages.{i}.blocks.{j}.attn.", state_dict)


def resample_to_stage(pos_embed: Tensor, stage: nn.Module, name: str) -> Tensor:
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
            f"{name} has {count} positions, which are no square grid, and the model has {stage.grid_size[0]} x "
            f"{stage.grid_size[1]}; create the model with the img_size that the weights were trained with."
        )
    return resample_pos_embed(pos_embed, (side, side), stage.grid_size, prefix)


def load_pretrained(model: nn.Module, path: str | Path) -> None:
    """Load the weights in a file into model, in place; classes and input channels of the file may be others.

    Raises what `load_weights` and `checkpoint_filter_fn` raise, and ValueError for weights that are not finite or that
    were trained with the other of soft and soft_norm, before any weight of the model is changed. A head that is left
    out is told by a UserWarning, unless another number of classes than the model's configuration has was asked for.
    """
    content = read_checkpoint_file(path)
    strict = model.pretrained_cfg.get("custom_load") != LENIENT
    state_dict = checkpoint_filter_fn(unwrap_state_dict(content, str(path)), model, strict)
    check_same_attention(content, model)
    require_finite(state_dict, str(path))
    cfg = dict(model.pretrained_cfg, state_dict=state_dict, custom_load=False)
    # The classes that the file has, which need not be those of the model's configuration; -1 there is how timm's
    # train.py asks to leave the head out.
    if "head.weight" in state_dict and cfg["num_classes"] >= 0:
        classes = cfg["num_classes"] = state_dict["head.weight"].shape[0]
        if classes != model.num_classes == model.pretrained_cfg["num_classes"] and model.num_classes > 0:
            warnings.warn(
                f"{path} tells {classes} classes apart and the model {model.num_classes}: its head is left out; give "
                f"num_classes={classes} to keep it.",
                stacklevel=2,
            )
    in_chans = state_dict["stages.0.patch_embed.0.conv.weight"].shape[1]
    cfg["input_size"] = (in_chans, *cfg["input_size"][1:])
    timm_load_pretrained(model, cfg, num_classes=model.num_classes, in_chans=model.in_chans, strict=strict)
