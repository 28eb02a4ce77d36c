"""What timm expects of a net of stem, stages, norm and head, once for all families that have this form.

Letters: B batch, C channels, H x W a map.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, ClassVar, Literal, cast, get_args

import torch
import torch.nn.functional as F
from timm.layers import get_device_dtype
from timm.models import checkpoint
from timm.models._features import feature_take_indices
from timm.models._input import update_model_input_size
from torch import Tensor, nn

from soft_vit.layers.embed import channels_last  # noqa: F401  for families
from soft_vit.models.arguments import check_image_size
from soft_vit.models.pyramid import MIN_IMAGE_SIDE, check_image, init_linear
from soft_vit.models.zoo import checkpoint_filter_fn, refuse_other_models  # noqa: F401  timm's name for the filter
from soft_vit.ops.numerics import check_choice

GlobalPool = Literal["avg", ""]


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """A map `[B, C, H, W]` with zeros on its right and below, to sides that are multiples of a number."""
    # Such that the padded sides are multiples also as symbols. Of positive numbers, as ONNX rounds division to zero.
    below, right = ((side + multiple - 1) // multiple * multiple - side for side in x.shape[2:])
    # A graph for any size must not depend on whether this one fits.
    if torch.compiler.is_compiling() or below or right:
        x = F.pad(x, (0, right, 0, below))
    return x


# Leaves of symbolic tracing: they look at sizes.
torch.fx.wrap("check_image")
torch.fx.wrap("pad_to_multiple")


class Stage(nn.Module):
    """Blocks of one resolution, from maps `[B, C, H, W]` to such maps, and what leads from their result to the next."""

    def __init__(self, blocks: Sequence[nn.Module], downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x) if self.grad_checkpointing else block(x)
        return x


class StagedModel(nn.Module):
    """Stem, stages, norm, mean over the map, linear head. Images `[B, in_chans, H, W]` from 32 x 32 up.

    A family's `__init__` calls this one, sets `patch_embed` (images to the first stage's map), the stages in an
    `nn.ModuleList` under the name `stages_name`, and `norm` (of the last stage's map), and calls `init_weights`. A
    stage takes a map `[B, C, H, W]` and returns one; its module `downsample`, if it has one, leads from there to the
    next stage. Everything else, such as `embed` or `finish`, may be replaced by a family that does it otherwise.

    embed_dims: channels of the stages; reductions: pixels to a side of one token of each, by default 4 and
        twice as many from stage to stage.
    global_pool: `avg` (mean over the map), or the empty string for none.
    drop_rate: dropout before the head.
    """

    stages_name: ClassVar[str] = "layers"
    """The attribute that holds the stages, whose name is part of all names in them."""

    finish_names: ClassVar[tuple[str, ...]] = ("norm",)
    """Modules between the last stage and the head, which a net without its last stage has no use for."""

    no_decay: ClassVar[tuple[str, ...]] = ()
    """What the names of parameters end in that weight decay leaves alone, beside vectors and biases."""

    computed: ClassVar[tuple[str, ...]] = ()
    """What the names of buffers end in that released files hold and this package computes, such as tables of angles."""

    patch_embed: nn.Module
    norm: nn.Module

    def __init__(
        self,
        embed_dims: Sequence[int],
        reductions: Sequence[int] | None = None,
        *,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        num_features: int | None = None,
        global_pool: GlobalPool = "avg",
        drop_rate: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        self.img_size = check_image_size(img_size)
        self.reductions = reductions or [4 * 2**i for i in range(len(embed_dims))]
        self.in_chans = in_chans
        self.num_classes = num_classes
        self.num_features = self.head_hidden_size = num_features or embed_dims[-1]
        self.global_pool = check_choice("global_pool", global_pool, get_args(GlobalPool))
        self.feature_info: list[dict[str, Any]] = [
            {"num_chs": dim, "reduction": reduction, "module": f"{self.stages_name}.{i}"}
            for i, (dim, reduction) in enumerate(zip(embed_dims, self.reductions, strict=True))
        ]
        self.head_drop = nn.Dropout(drop_rate)
        self.head = self.make_head(num_classes, device=device, dtype=dtype)

    @property
    def stages(self) -> nn.ModuleList:
        return cast(nn.ModuleList, getattr(self, self.stages_name))

    def make_head(self, num_classes: int, device=None, dtype=None) -> nn.Module:
        """The classifier of `[B, num_features]`; nothing for 0 classes."""
        if num_classes == 0:
            return nn.Identity()
        return nn.Linear(self.num_features, num_classes, device=device, dtype=dtype)

    def init_weights(self, needs_reset: bool = True) -> None:
        """Random weights: truncated normal (0.02) for linear layers, torch's own for all others.

        needs_reset: also reset layers that initialise themselves, whose values the meta device does not keep.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init_linear(module)
            elif needs_reset and callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith(self.no_decay)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers for layer-wise settings: stages if coarse, otherwise blocks.

        What leads to a stage goes with its first block, what leads out of one and the last norm with the block before.
        """
        stage = rf"^{self.stages_name}\.(\d+)"
        if coarse:
            return {"stem": r"^patch_embed", "blocks": stage}
        return {
            "stem": r"^patch_embed",
            "blocks": [
                (rf"{stage}\.blocks\.(\d+)", None),
                (rf"{stage}\.downsample", (99999,)),
                (stage, (0,)),
                (rf"^(?:{'|'.join(self.finish_names)})\.", (99999,)),
            ],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for stage in self.stages:
            stage.grad_checkpointing = enable  # type: ignore[assignment]  # a ModuleList knows no type of its modules

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Make img_size (at least 32 x 32) the model's own; see `resize`."""
        self.img_size = check_image_size(img_size, MIN_IMAGE_SIDE)
        self.resize(self.img_size)
        # timm writes this beside the weights it saves.
        update_model_input_size(self, self.img_size)

    def resize(self, img_size: tuple[int, int]) -> None:
        """Resample, for good, the parameters that belong to one image size; most families have none."""

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh head for num_classes (0: none), on the model's device and dtype, in its training mode."""
        if global_pool is not None:
            self.global_pool = check_choice("global_pool", cast(GlobalPool, global_pool), get_args(GlobalPool))
        self.num_classes = num_classes
        self.head = self.make_head(num_classes, **get_device_dtype(self))
        if isinstance(self.head, nn.Linear):
            init_linear(self.head)
        self.head.train(self.training)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the chosen intermediates do not need; returns the indices as non-negative numbers."""
        take_indices, max_index = feature_take_indices(len(self.stages), indices)
        shortened = max_index < len(self.stages) - 1
        setattr(self, self.stages_name, self.stages[: max_index + 1])
        if shortened:
            last: Any = self.stages[-1]
            if hasattr(last, "downsample"):
                last.downsample = None
            self.num_features = self.head_hidden_size = self.feature_info[max_index]["num_chs"]
        if prune_norm or shortened:
            for name in self.finish_names:
                setattr(self, name, nn.Identity())
        if prune_head or shortened:
            self.reset_classifier(0, "")
        return take_indices

    def own_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Released weights under this model's names, without buffers that it computes; other names pass unchanged.

        A family with other names extends this.
        """
        return {
            name: value for name, value in state_dict.items() if not (self.computed and name.endswith(self.computed))
        }

    def released_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of this model as released: the inverse of `own_state_dict`, with what the released code computes.

        A family with other names, or whose released code asks for buffers, extends this.
        """
        return dict(state_dict)

    def resample_state(self, weights: MutableMapping[str, Tensor]) -> None:
        """Resample, in place, weights that belong to images of another size; most families have none."""

    def convert_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Released weights, or this model's of another image size, under its names and with its shapes."""
        weights = self.own_state_dict(state_dict)
        self.resample_state(weights)
        return weights

    def _load_from_state_dict(
        self, state_dict: MutableMapping[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        """Called by torch's load_state_dict on this module, also inside another one: take released weights too.

        state_dict is torch's own copy. Raises ValueError for the weights of another model of the zoo.
        """
        given = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        fitted = self.convert_state_dict(given)
        refuse_other_models(given, fitted, self)
        for name in given:
            del state_dict[prefix + name]
        state_dict.update({prefix + name: value for name, value in fitted.items()})
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def embed(self, x: Tensor) -> Tensor:
        """Images to the map `[B, C, H, W]` that the first stage takes."""
        return self.patch_embed(check_image(x, self.in_chans))

    def forward_stage(self, index: int, x: Tensor) -> Tensor:
        """The features of a stage, `[B, C, H, W]`, from those of the stage before, or from `embed`."""
        downsample = getattr(self.stages[index - 1], "downsample", None) if index else None
        if downsample is not None:
            x = downsample(x)
        return self.stages[index](x)

    def finish(self, x: Tensor) -> Tensor:
        """The last stage's features as `forward_features` returns them."""
        return self.norm(x)

    def norm_features(self, x: Tensor) -> Tensor:
        """The last stage's features under the final norm, for `forward_intermediates`."""
        return self.norm(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Features of the stages: contiguous maps `[B, C, H, W]` (NCHW) or `[B, H, W, C]` (NHWC).

        indices: the last n stages if int, all if None. norm: apply the final norm to the last stage's features, the
        only ones it fits. Returns the intermediates, and before them the final features unless intermediates_only.
        """
        check_choice("output_fmt", output_fmt, ("NCHW", "NHWC"))
        take_indices, max_index = feature_take_indices(len(self.stages), indices)
        last = len(self.feature_info) - 1
        x = self.embed(x)
        intermediates = []
        for i in range(max_index + 1 if stop_early else len(self.stages)):
            x = self.forward_stage(i, x)
            if i in take_indices:
                feature = self.norm_features(x) if norm and i == last else x
                intermediates.append((feature if output_fmt == "NCHW" else feature.permute(0, 2, 3, 1)).contiguous())
        if intermediates_only:
            return intermediates
        if not stop_early or max_index == len(self.stages) - 1:
            x = self.finish(x)
        return x, intermediates

    def forward_features(self, x: Tensor) -> Tensor:
        """Images `[B, in_chans, H, W]` to the final map `[B, num_features, H', W']`."""
        x = self.embed(x)
        for i in range(len(self.stages)):
            x = self.forward_stage(i, x)
        return self.finish(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Features of `forward_features` to logits, of each place without a pool, or pooled if pre_logits."""
        x = self.head_drop(x.mean((2, 3)) if self.global_pool else x)
        if pre_logits or isinstance(self.head, nn.Identity):
            return x
        return self.head(x) if self.global_pool else self.head(x.movedim(1, -1)).movedim(-1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))
