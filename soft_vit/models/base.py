"""timm's contract for models of a stem, stages, a norm and a head: the base of the SOFT pyramid and of all families.

A family is one file: its layers, a subclass of `StagedModel`, a table of arguments, and the call of `register_family`.
`mila.py` is a short example.

Letters: B batch, C channels, H x W a map, P prefix tokens, N tokens of a map.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import timm
import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import get_device_dtype, register_notrace_function, to_2tuple, trunc_normal_
from timm.models import DefaultCfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from timm.models._input import update_model_input_size
from torch import Tensor, nn

from soft_vit.layers.attention import name_hint
from soft_vit.layers.embed import grid_of_positions, replace_parameter, resample_pos_embed, tokens_to_map
from soft_vit.layers.recompute import checkpoint
from soft_vit.ops.layout import Size
from soft_vit.ops.numerics import check_choice
from soft_vit.weights import RECORDED_WEIGHTS, WeightsError
from soft_vit.weights.adapter import Adapter
from soft_vit.weights.build import build_model
from soft_vit.weights.load import resample_vit
from soft_vit.weights.spec import options_of

MIN_IMAGE_SIDE = 32
FAMILY_MODELS: dict[str, Mapping[str, Any]] = {}
"""Arguments of each named model of other authors."""


class UnknownOptionError(TypeError, ValueError):
    """Raised for an option of neither the model nor its attentions; timm expects a TypeError, callers a ValueError."""


def check_image_size(img_size: int | Size, minimum: int = 1) -> Size:
    """Return img_size as (height, width); ValueError if a side is below `minimum`."""
    size = tuple(to_2tuple(img_size))
    if len(size) != 2 or min(size) < minimum:
        raise ValueError(f"img_size must be an int or (height, width) of at least {minimum}, got {img_size}.")
    return size


@register_notrace_function
def check_image(x: Tensor, in_chans: int) -> Tensor:
    """Return images x `[B, in_chans, H, W]`; ValueError for another shape or a side below 32 pixels."""
    if x.ndim != 4 or x.shape[1] != in_chans:
        raise ValueError(f"The input must be of shape [B, {in_chans}, H, W], got {tuple(x.shape)}.")
    if x.shape[2] < MIN_IMAGE_SIDE or x.shape[3] < MIN_IMAGE_SIDE:
        raise ValueError(f"Images must be at least {MIN_IMAGE_SIDE} pixels a side, got {x.shape[2]} x {x.shape[3]}.")
    return x


def check_stages(depths: Sequence[int], **arguments: Sequence[float]) -> None:
    """Raise ValueError unless every argument has a positive entry for each stage, and the last stage a block."""
    for name, values in arguments.items():
        if len(values) != len(depths) or not all(isinstance(x, int | float) and x > 0 for x in values):
            what = f"a positive number for each of the {len(depths)} stages"
            raise ValueError(f"{name} must be {what}, got {tuple(values)}.")
    if min(depths) < 0 or depths[-1] < 1:
        raise ValueError(f"depths must be at least 0, and at least 1 in the last stage, got {tuple(depths)}.")


def require_known(name: str) -> None:
    """Raise ValueError, with similar names, for a model name that timm does not know, and for an unknown tag.

    A name with a prefix such as `hf-hub:` is not checked.
    """
    if ":" in name:
        return
    if not timm.is_model(name):
        hint = name_hint(name.split(".")[0], timm.list_models(), "choose a name of timm.list_models().")
        raise ValueError(f"The model name must be one that timm knows, got {name!r}; {hint}")
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise ValueError(f"{str(error).rstrip('.')}; choose a name of timm.list_pretrained().") from error


@register_notrace_function
def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Pad a map `[B, C, H, W]` with zeros on the right and below, to sides that are multiples of `multiple`."""
    # Written so that symbolic sides become multiples too; numbers stay positive, as ONNX rounds division to zero.
    below, right = ((side + multiple - 1) // multiple * multiple - side for side in x.shape[2:])
    # A graph for any size must not depend on whether this size is a multiple.
    if torch.compiler.is_compiling() or below or right:
        x = F.pad(x, (0, right, 0, below))
    return x


def init_linear(layer: nn.Linear | nn.Conv2d) -> None:
    """Draw truncated normal weights (0.02) in place, and set the bias to zero."""
    trunc_normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def init_conv(layer: nn.Conv2d) -> None:
    """Draw normal weights of variance 2 / fan-out in place, and set the bias to zero."""
    fan_out = layer.weight[0, 0].numel() * layer.out_channels // layer.groups
    nn.init.normal_(layer.weight, std=(2 / fan_out) ** 0.5)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def add_img_size_hooks(model: nn.Module) -> None:
    """Make state dicts of a model note its options, and its `load_state_dict` resample weights of another size."""
    model.register_state_dict_post_hook(note_options)
    model.register_load_state_dict_pre_hook(resample_and_check)


def note_options(model: Any, state_dict: Mapping[str, Tensor], prefix: str, local_metadata: dict[str, Any]) -> None:
    """Note the image size and the options of a model in the metadata that torch saves with its state dict."""
    size = getattr(model, "img_size", None) or model.patch_embed.img_size
    local_metadata["options"] = {**options_of(model), "img_size": tuple(size)}


def resample_and_check(
    model: Any, state_dict: MutableMapping[str, Tensor], prefix: str, local_metadata: Mapping[str, Any], *_: Any
) -> None:
    """Resample weights of another image size in state_dict, which is torch's own copy, and check all shapes.

    Raises WeightsError for a parameter of another shape outside of the head. MMEngine's non-strict loading would leave
    it random.
    """
    # A ViT is of timm's class, or of a subclass of it.
    resample = getattr(model, "resample_state", None) or partial(resample_vit, model)
    resample(prefix, state_dict, local_metadata.get("options", {}).get("img_size"))
    heads = getattr(model, "pretrained_cfg", {}).get("classifier") or "head"
    heads = (heads,) if isinstance(heads, str) else heads
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        given = state_dict.get(prefix + name)
        if given is not None and given.shape != own.shape and name.rpartition(".")[0] not in heads:
            raise WeightsError(f"{prefix}{name} must be of shape {tuple(own.shape)}, got {tuple(given.shape)}.")


def forget_classes(model: Any) -> None:
    """Forget the names of a model's classes and their task, which belong to the head that is replaced."""
    if cfg := getattr(model, "pretrained_cfg", None):
        model.pretrained_cfg = model.default_cfg = {**cfg, "label_names": None, "notes": None}


class SingleBlock(nn.Module):
    """A block on maps `[B, C, H, W]` that may be a stage by itself, and is then checkpointed as one."""

    grad_checkpointing: bool = False

    apply_layers: Callable[[Tensor], Tensor]
    """Returns the map after the block, of the shape of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.apply_layers, x) if self.grad_checkpointing else self.apply_layers(x)


class Stage(nn.Module):
    """Blocks of one resolution on maps `[B, C, H, W]`.

    downsample: the layer between this stage and the next, which the model applies.
    """

    def __init__(self, blocks: Sequence[nn.Module], downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x) if self.grad_checkpointing else block(x)
        return x


def resize_stage(stage: Any, grid_size: Size) -> None:
    """Resample the position embedding of a stage, and the weights of its attentions for one map, to another map."""
    if stage.pos_embed is not None:
        pos_embed = resample_pos_embed(stage.pos_embed, stage.grid_size, grid_size, stage.num_prefix_tokens)
        replace_parameter(stage, "pos_embed", pos_embed)
    stage.grid_size = grid_size
    for block in stage.blocks:
        getattr(block, "resize", block.attn.resize)(grid_size)


class StagedModel(nn.Module):
    """Stem, stages, norm, mean over the map, linear head, for images `[B, in_chans, H, W]` of at least 32 x 32.

    The `__init__` of a subclass calls this one. It then sets `patch_embed` (images to the map of the first stage), the
    stages as a ModuleList of `Stage` under the name `stages_name`, and `norm` (of the last map), and calls
    `init_weights`. A family overrides what differs, such as `grids`, `forward_norm`, or `adapter`, the names of
    released weights. Stages whose weights belong to one map have it as `grid_size`.

    embed_dims: channels of each stage.
    reductions: stride of each stage to the image, by default 4, 8, 16, ...
    num_features: channels that the head takes, by default those of the last stage.
    global_pool: `avg` (mean over the map), or the empty string for no pooling.
    drop_rate: dropout before the head.
    drop_path_rate: of the last block, see `drop_path_rates`.
    """

    stages_name: ClassVar[str] = "layers"
    """Name of the attribute that holds the stages."""

    stem_pattern: ClassVar[str] = r"^patch_embed"
    """Regular expression for the names of the stem's parameters, for `group_matcher`."""

    final_names: ClassVar[tuple[str, ...]] = ("norm",)
    """Modules between the last stage and the head, which are removed together with the last stage."""

    no_decay: ClassVar[tuple[str, ...]] = ()
    """Suffixes of parameters without weight decay, in addition to vectors and biases."""

    adapter: Adapter = Adapter({"**": "**"})
    """The names of released weights; by default those of the model."""

    init_convs: ClassVar[bool] = False
    """Whether convolutions begin with truncated normal weights (0.02) and a bias of zero, as linear layers do."""

    head_names: ClassVar[tuple[str, ...]] = ("head",)
    """Names of the attributes that hold classifiers; the first is `head`."""

    with_classes: ClassVar[tuple[str, ...]] = ()
    """How the names of parameters begin that a model without classes leaves out of released weights."""

    head_last: ClassVar[bool] = False
    """Whether the subclass calls `add_heads` after its stages. Saved optimizers depend on the order of parameters."""

    channel_dim: ClassVar[int] = 1
    """Dimension of the channels in the result of `forward_features`."""

    rounds_up: bool = True
    """Whether sides of maps are those of the image over the strides, rounded up; otherwise rounded down."""

    global_pools: ClassVar[tuple[str, ...]] = ("avg", "")
    output_formats: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")

    patch_embed: nn.Module
    norm: nn.Module

    def __init__(
        self,
        embed_dims: Sequence[int],
        reductions: Sequence[int] | None = None,
        *,
        img_size: int | Size = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        num_features: int | None = None,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        self.img_size = check_image_size(img_size)
        self.reductions = reductions or [4 * 2**i for i in range(len(embed_dims))]
        self.in_chans, self.num_classes = in_chans, num_classes
        self.num_features = num_features or embed_dims[-1]
        self.global_pool = check_choice("global_pool", global_pool, self.global_pools)
        self.feature_info: list[dict[str, Any]] = [
            {"num_chs": dim, "reduction": reduction, "module": f"{self.stages_name}.{i}"}
            for i, (dim, reduction) in enumerate(zip(embed_dims, self.reductions, strict=True))
        ]
        self.head_drop = nn.Dropout(drop_rate)
        self.drop_path_rate = drop_path_rate
        self.head: nn.Module
        if not self.head_last:
            self.add_heads(device=device, dtype=dtype)
        add_img_size_hooks(self)

    @property
    def stages(self) -> nn.ModuleList:
        # Not getattr: the pyramid's attribute has the same name as this property.
        return cast(nn.ModuleList, self._modules[self.stages_name])

    @property
    def head_hidden_size(self) -> int:
        """Channels that the head takes."""
        return self.num_features

    def drop_path_rates(self, depths: Sequence[int]) -> list[list[float]]:
        """Return the drop-path rates of the blocks of every stage, rising linearly from 0 to that of the model."""
        rate, steps = self.drop_path_rate, max(sum(depths) - 1, 1)
        return [[rate * (sum(depths[:i]) + j) / steps for j in range(depth)] for i, depth in enumerate(depths)]

    def add_heads(self, **dd: Any) -> None:
        """Add a head for the classes of the model under each of the `head_names`."""
        for name in self.head_names:
            self.add_module(name, self.make_head(self.num_classes, **dd))

    def make_head(self, num_classes: int, **dd: Any) -> nn.Module:
        """Return a `classifier`, or an Identity for 0 classes."""
        return self.classifier(num_classes, **dd) if num_classes > 0 else nn.Identity()

    def classifier(self, num_classes: int, **dd: Any) -> nn.Module:
        """Return what gives logits, by default a linear layer of `[B, num_features]`."""
        return nn.Linear(self.num_features, num_classes, **dd)

    def init_weights(self, needs_reset: bool = True) -> None:
        """Draw random weights: truncated normal (0.02) for linear layers, torch's defaults for others.

        needs_reset: also reset layers that initialise themselves; required after `to_empty` from the meta device.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d if self.init_convs else nn.Linear):
                init_linear(module)
            elif needs_reset and callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith(self.no_decay)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns that group parameters for layer-wise settings: by stage if coarse, otherwise by block.

        Embeddings of a stage belong to its first block; downsampling and the last norm to the block before them.
        """
        stage = rf"^{self.stages_name}\.(\d+)"
        if coarse:
            return {"stem": self.stem_pattern, "blocks": stage}
        return {
            "stem": self.stem_pattern,
            "blocks": [
                (rf"{stage}\.blocks\.(?:reversible\.)?(\d+)", None),
                (rf"{stage}\.downsample", (99999,)),
                (stage, (0,)),
                (rf"^(?:{'|'.join(self.final_names)})\.", (99999,)),
            ],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for stage in self.stages:
            stage.grad_checkpointing = enable  # type: ignore[assignment]  # a ModuleList knows no type of its modules

    def set_input_size(self, img_size: int | Size) -> None:
        """Set the image size of the model, at least 32 x 32, and resample the weights that belong to it."""
        img_size = check_image_size(img_size, MIN_IMAGE_SIDE)
        if img_size != self.img_size:
            for stage, grid_size in zip(self.stages, self.grids(img_size), strict=False):
                if hasattr(stage, "grid_size"):
                    resize_stage(stage, grid_size)
            self.img_size = img_size
        # timm saves this with the weights.
        update_model_input_size(self, img_size)

    def grids(self, img_size: Size) -> list[Size]:
        """Return the map sizes (H, W) of the stages for an image size."""
        if self.rounds_up:
            return [(-(-img_size[0] // r), -(-img_size[1] // r)) for r in self.reductions]
        return [(img_size[0] // r, img_size[1] // r) for r in self.reductions]

    def position_counts(self, img_size: Size) -> dict[str, int]:
        """Return the number of positions, with prefix tokens, of each position embedding for an image size."""
        grids = zip(cast(Any, self.stages), self.grids(img_size), strict=False)
        return {
            f"{self.stages_name}.{i}.pos_embed": stage.num_prefix_tokens + height * width
            for i, (stage, (height, width)) in enumerate(grids)
            if getattr(stage, "pos_embed", None) is not None
        }

    def attention_grid(self, grid_size: Size) -> Size:
        """Return the map that weights of attentions in a stage belong to, by default that of the stage."""
        return grid_size

    def get_classifier(self) -> nn.Module:
        return self.head

    def check_global_pool(self, global_pool: str) -> str:
        """Return global_pool; ValueError if this model does not support it."""
        return check_choice("global_pool", global_pool, self.global_pools)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one for num_classes (0: Identity), with the model's device, dtype and mode."""
        forget_classes(self)
        if global_pool is not None:
            self.global_pool = self.check_global_pool(global_pool)
        self.num_classes = num_classes
        for name in self.head_names:
            head = self.make_head(num_classes, **get_device_dtype(self))
            for module in head.modules():
                if isinstance(module, nn.Linear):
                    init_linear(module)
            setattr(self, name, head.train(self.training))

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the layers that the chosen intermediates do not need; return the indices as non-negative numbers."""
        take_indices, max_index = feature_take_indices(len(self.stages), indices)
        shortened = max_index < len(self.stages) - 1
        setattr(self, self.stages_name, self.stages[: max_index + 1])
        if shortened:
            cast(Any, self.stages[-1]).downsample = None
        if prune_norm or shortened:
            self.num_features = self.feature_info[max_index]["num_chs"]
            for name in self.final_names:
                setattr(self, name, nn.Identity())
        # A head behind more than a norm needs all of that.
        if prune_head or shortened or (prune_norm and self.final_names != ("norm",)):
            self.reset_classifier(0, "")
        return take_indices

    def from_released(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return released or converted weights under the names of this model, see `Adapter`."""
        left_out = () if self.num_classes else self.with_classes
        weights = self.adapter.from_released(state, self.state_dict())
        return {name: value for name, value in weights.items() if not name.startswith(left_out)}

    def to_released(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of this model under the released names: invert `from_released`, see `Adapter`.

        Raises ValueError for a parameter that the released code does not have.
        """
        return self.adapter.to_released(state, self)

    def resample_state(self, prefix: str, weights: MutableMapping[str, Tensor], img_size: Size | None = None) -> None:
        """Resample, in place, position embeddings and weights of attentions for one map to the maps of this model.

        prefix: of the names of this model in weights. img_size: the image size of the weights, if known.
        """
        for i, stage in enumerate(cast(Any, self.stages)):
            stage_name, own = f"{prefix}{self.stages_name}.{i}", getattr(stage, "pos_embed", None)
            noted = self.grids(img_size)[i] if img_size else None
            name = f"{stage_name}.pos_embed"
            if own is not None and name in weights:
                grid = grid_of_positions(weights[name], own, noted, stage.num_prefix_tokens)
                if grid is not None:
                    weights[name] = resample_pos_embed(weights[name], grid, stage.grid_size, stage.num_prefix_tokens)
            for name, module in stage.named_modules(prefix=stage_name):
                if hasattr(module, "resample_state"):
                    module.resample_state(f"{name}.", weights, noted and self.attention_grid(noted))

    def embed(self, x: Tensor) -> Tensor:
        """Return what the first stage takes, by default a map `[B, C, H, W]`, from images."""
        return self.patch_embed(x)

    def forward_stage(self, index: int, x: Any) -> Any:
        """Return the output of a stage, by default a map `[B, C, H, W]`, from that before it or of `embed`."""
        downsample = getattr(self.stages[index - 1], "downsample", None) if index else None
        if downsample is not None:
            x = downsample(x)
        return self.stages[index](x)

    def feature(self, index: int, x: Any, norm: bool, output_fmt: str) -> Tensor:
        """Return the output x of a stage as an intermediate feature. norm: apply the final norm."""
        x = self.norm(x) if norm else x
        return (x if output_fmt == "NCHW" else x.permute(0, 2, 3, 1)).contiguous()

    def forward_norm(self, x: Any, norm: bool = True) -> Tensor:
        """Return the output of the last stage as `forward_features` does. norm: apply the final norm."""
        return self.norm(x) if norm else x

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the final features and a list of features of the stages, or the list alone if intermediates_only.

        These are contiguous maps `[B, C, H, W]` (NCHW), or in another of `output_formats`. indices: the last n stages
        if int, all if None. norm: apply the final norm to the features of the last stage. stop_early: do not run the
        stages after the last index.
        """
        check_choice("output_fmt", output_fmt, self.output_formats)
        take_indices, max_index = feature_take_indices(len(self.stages), indices)
        num_stages = max_index + 1 if stop_early else len(self.stages)
        x = self.embed(check_image(x, self.in_chans))
        intermediates = []
        for i in range(num_stages):
            x = self.forward_stage(i, x)
            if i in take_indices:
                intermediates.append(self.feature(i, x, norm and i == len(self.feature_info) - 1, output_fmt))
        if intermediates_only:
            return intermediates
        return self.forward_norm(x, norm=num_stages == len(self.stages)), intermediates

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the final map `[B, num_features, H', W']` of images `[B, in_chans, H, W]`."""
        x = self.embed(check_image(x, self.in_chans))
        for i in range(len(self.stages)):
            x = self.forward_stage(i, x)
        return self.forward_norm(x)

    def pool(self, x: Tensor) -> Tensor:
        """Return the features `[B, head_hidden_size]` that the head takes, from the final map `[B, C, H, W]`."""
        return x.mean((2, 3))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return logits of the output of `forward_features`, or pooled features if pre_logits.

        Without pooling, both are maps or tokens, as that output is.
        """
        x = self.head_drop(self.pool(x) if self.global_pool else x)
        if pre_logits or isinstance(self.head, nn.Identity):
            return x
        dim = self.channel_dim
        return self.head(x) if self.global_pool else self.head(x.movedim(dim, -1)).movedim(-1, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


class PlainModel(StagedModel):
    """Blocks of one resolution, each a stage, behind a position embedding `pos_embed` `[1, N, C]` of the tokens.

    The embedding is that of the map of img_size; for any other map it is resampled (bicubic, half-pixel centres,
    without antialiasing). A family calls `init_pos_embed`.

    pos_img_size: the image size that the embedding stays for, whatever img_size is set.
    """

    stem_pattern: ClassVar[str] = r"^patch_embed|^pos_embed"
    with_classes: ClassVar[tuple[str, ...]] = ("head.",)
    pos_img_size: Size | None = None
    pos_embed: nn.Parameter

    def init_pos_embed(self, dim: int, **dd: Any) -> None:
        self.pos_embed = nn.Parameter(torch.empty(1, math.prod(self.pos_grid()), dim, **dd))

    def pos_grid(self, img_size: Size | None = None) -> Size:
        """Return the map (H, W) of the embedding of a model for images of that size, by default this model."""
        return self.grids(self.pos_img_size or img_size or self.img_size)[0]

    def add_positions(self, x: Tensor) -> Tensor:
        """Return a map `[B, C, H, W]` plus the position embedding."""
        feat_size = x.shape[2], x.shape[3]
        pos_embed = resample_pos_embed(self.pos_embed, self.pos_grid(), feat_size, mode="bicubic")
        return x + tokens_to_map(pos_embed, feat_size)

    def embed(self, x: Tensor) -> Tensor:
        return self.add_positions(self.patch_embed(x))

    def set_input_size(self, img_size: int | Size) -> None:
        img_size = check_image_size(img_size, MIN_IMAGE_SIDE)
        old, new = self.pos_grid(), self.pos_grid(img_size)
        if old != new:
            replace_parameter(self, "pos_embed", resample_pos_embed(self.pos_embed, old, new, mode="bicubic"))
        super().set_input_size(img_size)

    def position_counts(self, img_size: Size) -> dict[str, int]:
        return {"pos_embed": math.prod(self.pos_grid(img_size))}

    def resample_state(self, prefix: str, weights: MutableMapping[str, Tensor], img_size: Size | None = None) -> None:
        """Resample the position embedding, in place; one of `[1, H, W, C]` is that of the map (H, W)."""
        name = f"{prefix}pos_embed"
        if name in weights:
            noted = self.pos_grid(img_size) if img_size else None
            if weights[name].ndim == 4:
                noted = weights[name].shape[1], weights[name].shape[2]
                weights[name] = weights[name].flatten(1, 2)
            if (grid := grid_of_positions(weights[name], self.pos_embed, noted)) is not None:
                weights[name] = resample_pos_embed(weights[name], grid, self.pos_grid(), mode="bicubic")


def imagenet_cfg(**kwargs: Any) -> dict[str, Any]:
    """Return timm's configuration of a model for ImageNet at 224 pixels; kwargs override it."""
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "fixed_input_size": False,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        **kwargs,
    }


def make_default_cfgs(names: Iterable[str], cfg: Callable[[str], Mapping[str, Any]]) -> dict[str, DefaultCfg]:
    """Return timm's `default_cfgs` of models, with a tag for each of their recorded weights.

    cfg: returns the configuration of a model, which that of the weights overrides.
    """
    names = list(names)
    entries = [entry for entry in RECORDED_WEIGHTS.values() if entry.model in names]
    recorded = {entry.name: {**cfg(entry.model), **entry.timm_cfg()} for entry in entries}
    with_weights = {tag.split(".")[0] for tag in recorded}
    return generate_default_cfgs({**recorded, **{name: dict(cfg(name)) for name in names if name not in with_weights}})


def register_named(name: str, create: Callable[..., nn.Module]) -> None:
    """Register `create(name, pretrained, **kwargs)` with timm as the entrypoint of a name, in the module of create."""

    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return create(name, pretrained, **kwargs)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__module__ = create.__module__
    setattr(sys.modules[create.__module__], name, register_model(entrypoint))


def register_models(
    cls: type[nn.Module], models: Mapping[str, Mapping[str, Any]], feature_indices: int | Sequence[int] = (0, 1, 2, 3)
) -> None:
    """Register a class with timm under the names of models, with their arguments.

    feature_indices: stages that `features_only` returns by default.
    """

    def create(name: str, pretrained: bool, **kwargs: Any) -> nn.Module:
        # timm changes this dictionary.
        feature_cfg = dict(out_indices=feature_indices, feature_cls="getter")
        return build_model(cls, name, pretrained, feature_cfg=feature_cfg, arguments=models[name], **kwargs)

    create.__module__ = cls.__module__
    for name in models:
        register_named(name, create)


def register_family(
    cls: type[nn.Module],
    models: Mapping[str, Mapping[str, Any]],
    feature_indices: int | Sequence[int] = (0, 1, 2, 3),
    cfg: Callable[[str], dict[str, Any]] = lambda name: {},
    **common: Any,
) -> None:
    """Register models of a family as `register_models` does, and their configurations as the module's `default_cfgs`.

    cfg: returns entries of `imagenet_cfg` by the name of a model. common: those of all models.
    """
    FAMILY_MODELS.update(models)
    module: Any = sys.modules[cls.__module__]
    cfgs = make_default_cfgs(models, lambda name: imagenet_cfg(**common, **cfg(name)))
    module.default_cfgs = {**getattr(module, "default_cfgs", {}), **cfgs}
    register_models(cls, models, feature_indices)
