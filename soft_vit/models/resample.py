"""Weights that belong to one size of images, resampled where a model of another size loads them.

A state dict notes the size beside its version, and `load_state_dict` resamples by it: two hooks of torch's, which
`watch_img_size` registers on a model. Letters: P prefix tokens, n tokens of a map, C channels.
"""

import math
from collections.abc import Mapping, MutableMapping
from typing import Any

from torch import Tensor, nn

from soft_vit.layers import resample_pos_embed
from soft_vit.weights import WeightsError

__all__ = ["grid_of_positions", "resample_state", "watch_img_size"]

ImgSize = tuple[int, int]


def watch_img_size(model: nn.Module) -> None:
    """Make state dicts of a model note its size of images, and its `load_state_dict` resample by that."""
    model.register_state_dict_post_hook(note_img_size)
    model.register_load_state_dict_pre_hook(fit_img_size)


def note_img_size(model: Any, state_dict: Mapping[str, Tensor], prefix: str, local_metadata: dict[str, Any]) -> None:
    """Note the size of images in what torch saves beside the weights of a module."""
    local_metadata["options"] = {"img_size": tuple(model.img_size)}


def fit_img_size(
    model: Any, state_dict: MutableMapping[str, Tensor], prefix: str, local_metadata: Mapping[str, Any], *_: Any
) -> None:
    """Resample weights of another size of images in state_dict, torch's own copy; see `refuse_other_shapes`."""
    model.resample_state(state_dict, prefix, local_metadata.get("options", {}).get("img_size"))
    refuse_other_shapes(model, state_dict, prefix)


def refuse_other_shapes(model: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Raise WeightsError for another shape outside of the head, which MMEngine's non-strict loading leaves random."""
    heads = getattr(model, "pretrained_cfg", {}).get("classifier") or "head"
    heads = (heads,) if isinstance(heads, str) else heads
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        given = state_dict.get(prefix + name)
        if given is not None and given.shape != own.shape and name.rpartition(".")[0] not in heads:
            raise WeightsError(f"{prefix}{name} must be of shape {tuple(own.shape)}, got {tuple(given.shape)}.")


def resample_state(
    model: Any, weights: MutableMapping[str, Tensor], prefix: str = "", img_size: ImgSize | None = None
) -> None:
    """Resample, in place, the position embeddings of a model's stages and the weights of its attentions for one map.

    prefix: of the model's names in weights. img_size: that the weights are for, if known.
    """
    grids = model.grids(img_size) if img_size else ()
    stages = next(name for name, module in model.named_children() if module is model.stages)
    for i, stage in enumerate(model.stages):
        name, own = f"{prefix}{stages}.{i}.pos_embed", getattr(stage, "pos_embed", None)
        if own is not None and name in weights:
            prefix_tokens = getattr(stage, "num_prefix_tokens", 0)
            grid = grid_of_positions(weights[name], own, grids[i] if grids else None, prefix_tokens)
            if grid is not None:
                weights[name] = resample_pos_embed(weights[name], grid, stage.grid_size, prefix_tokens)
    for name, module in model.named_modules():
        if module is not model and hasattr(module, "resample_state"):
            module.resample_state(f"{prefix}{name}.", weights)


def grid_of_positions(
    given: Tensor, own: Tensor, noted: ImgSize | None, num_prefix_tokens: int = 0
) -> tuple[int, int] | None:
    """Return the map that a position embedding `[1, P + n, C]` is to be resampled from; None if it stays as it is.

    own: the model's. noted: the map that a file notes. Without one that fits, an embedding of another length is that of
    a square map.
    """
    count = given.shape[1] - num_prefix_tokens if given.ndim == 3 and given.shape[2] == own.shape[2] else 0
    if noted is not None and math.prod(noted) == count:
        return noted
    side = math.isqrt(max(count, 0))
    return None if given.shape == own.shape or count < 1 or side * side != count else (side, side)
