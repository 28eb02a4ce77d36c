"""Weights from files: read without executing anything, recognised, translated to this package's names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.models import clean_state_dict
from timm.models import load_pretrained as timm_load_pretrained
from torch import Tensor, nn

from soft_vit.layers import resample_pos_embed
from soft_vit.models.variants import size_name

# Where training programs keep weights inside a checkpoint; averaged weights come first.
STATE_DICT_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model")

# Names of the released SOFT implementation (first match of each kind), and ours.
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


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU: safetensors, or a torch checkpoint that holds one (EMA weights first).

    Raises what `read_checkpoint_file` raises, and ValueError for a file without a state dict.
    """
    return unwrap_state_dict(read_checkpoint_file(path), str(path))


def read_checkpoint_file(path: str | Path, map_location: Any = "cpu") -> Any:
    """The content of a file by torch.save, or of a safetensors file; nothing in it is executed (weights_only).

    FileNotFoundError for a missing file; ValueError, in one sentence, for one that is no checkpoint or would run code.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}; give the path of a file that exists.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        # Readers raise many types on bytes that are not theirs, and all of them mean the same to the caller.
        raise ValueError(
            f"The file {path} is not a checkpoint that can be read safely ({_reason(error)}); give a safetensors file, "
            f"or a torch file that holds weights and plain values alone."
        ) from error


def _reason(error: Exception) -> str:
    """What is wrong with a file, without torch's advice to switch the safety off."""
    refused = re.search(r"GLOBAL (\S+)|the file asks for ([^\n]+)", str(error))
    if refused is None:
        return "it is damaged or of another kind"
    return f"it asks for {refused[1] or refused[2]}, which could run code"


def unwrap_state_dict(content: Any, source: str = "the checkpoint") -> dict[str, Tensor]:
    """The tensors by name inside a loaded checkpoint; ValueError if there are none."""
    if isinstance(content, Mapping):
        for key in STATE_DICT_KEYS:
            if isinstance(content.get(key), Mapping):
                content = content[key]
                break
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(
            f"{source} holds no state dict; give a file with parameters by name, as torch.save writes one."
        )
    return clean_state_dict({key: value for key, value in content.items() if isinstance(value, Tensor)})


def rename_released(name: str) -> str:
    """Our name for a parameter of the released implementation; another name is returned as it is."""
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


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Released or converted weights as a state dict of model; harmless on converted ones.

    Position embeddings, and weights of attentions that fix their map, are resampled to the model's grids. ValueError
    when the weights are those of another model: other depths or widths, or names that are not ours. A head for another
    number of classes and a first convolution for other channels pass, because timm adapts them.
    """
    state_dict = {rename_released(name): value for name, value in unwrap_state_dict(state_dict).items()}
    check_same_model(state_dict, model)
    own = model.state_dict()
    for i, stage in enumerate(model.stages):
        name = f"stages.{i}.pos_embed"
        if name in state_dict and state_dict[name].shape != own[name].shape:
            state_dict[name] = resample_to_stage(state_dict[name], stage, name)
        for j, block in enumerate(stage.blocks):
            block.attn.resample_state(f"stages.{i}.blocks.{j}.attn.", state_dict)
    adapted_by_timm = {"head.weight", "head.bias", "stages.0.patch_embed.0.conv.weight"}
    for name, value in state_dict.items():
        if name in own and value.shape != own[name].shape and name not in adapted_by_timm:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model; "
                f"create the model with the options that the weights were trained with."
            )
    check_complete(state_dict, own)
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
    blocks = [re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", name) for name in state_dict]
    indices = {(int(match[1]), int(match[2])) for match in blocks if match}
    if not indices or not {"stages.0.pos_embed", "stages.0.patch_embed.0.conv.weight"} <= state_dict.keys():
        example = next(iter(state_dict))
        raise ValueError(
            f"The checkpoint is not of a soft_vit pyramid (its first parameter is {example!r}); "
            f"give weights of this package or of the released SOFT implementation."
        )
    num_stages = 1 + max(stage for stage, _ in indices)
    depths = tuple(sum(stage == i for stage, _ in indices) for i in range(num_stages))
    widths = tuple(state_dict[f"stages.{i}.pos_embed"].shape[-1] for i in range(num_stages))
    model_depths, model_widths = tuple(model.depths), tuple(model.embed_dims)
    pruned_to = len(model.stages)
    if (depths[:pruned_to], widths[:pruned_to]) != (model_depths[:pruned_to], model_widths[:pruned_to]):
        raise ValueError(
            f"The checkpoint is of {describe(widths, depths)} and the model is {describe(model_widths, model_depths)}; "
            f"{advice(widths, depths)}."
        )


def describe(widths: tuple[int, ...], depths: tuple[int, ...]) -> str:
    name = size_name(widths, depths)
    numbers = f"depths {' '.join(map(str, depths))} and widths {' '.join(map(str, widths))}"
    return f"size {name!r} with {numbers}" if name else f"an unnamed size with {numbers}"


def advice(widths: tuple[int, ...], depths: tuple[int, ...]) -> str:
    name = size_name(widths, depths)
    if name is None:
        return "create the model with these depths and embed_dims"
    released = " (the released code calls it soft_small)" if name == "base" else ""
    return f"create soft_{name} or soft_norm_{name}{released} for it"


def resample_to_stage(pos_embed: Tensor, stage: nn.Module, name: str) -> Tensor:
    """A position embedding of a square grid `[1, P + n*n, C]`, resampled to the stage's grid."""
    prefix = stage.num_prefix_tokens
    count = pos_embed.shape[1] - prefix
    side = int(count**0.5)
    if side * side != count:
        raise ValueError(
            f"{name} has {count} positions, which are no square grid, and the model has {stage.grid_size[0]} x "
            f"{stage.grid_size[1]}; create the model with the img_size that the weights were trained with."
        )
    return resample_pos_embed(pos_embed, (side, side), stage.grid_size, prefix)


def load_pretrained(model: nn.Module, path: str | Path) -> None:
    """Load the weights in a file into model, in place; classes and input channels of the file may be others.

    Raises what `load_weights` and `checkpoint_filter_fn` raise, before any weight of the model is changed.
    """
    state_dict = checkpoint_filter_fn(load_weights(path), model)
    cfg = dict(model.pretrained_cfg, state_dict=state_dict, custom_load=False)
    # What the file holds, not what the model's configuration says of other weights.
    if "head.weight" in state_dict:
        cfg["num_classes"] = state_dict["head.weight"].shape[0]
    in_chans = state_dict["stages.0.patch_embed.0.conv.weight"].shape[1]
    cfg["input_size"] = (in_chans, *cfg["input_size"][1:])
    timm_load_pretrained(model, cfg, num_classes=model.num_classes, in_chans=model.in_chans)
