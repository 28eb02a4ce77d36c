"""Masked image modelling for any model that makes a map (Xie et al., "SimMIM", arXiv 2111.09886).

Letters: B batch, C channels, H x W the image, h x w the last map of the model, S its stride.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from mmpretrain.models.losses import PixelReconstructionLoss
from mmpretrain.structures import DataSample
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from soft_vit.engine.models.distillation import TaughtClassifier
from soft_vit.registry import MODELS, register
from soft_vit.weights.read import PRETRAINING

# Of the random values that the learned patch begins with, as those of SimMIM's token.
SQUARE_STD = 0.02
# Added to the variance of a square, as in MAE.
MIN_VARIANCE = 1e-6


def last_map(model: Any, x: Tensor) -> Tensor:
    """Return the last map `[B, C, h, w]` of a timm model, after its final norm, of images `[B, 3, H, W]`."""
    return model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)[-1]


def enlarged(x: Tensor, side: int, size: tuple[int, int]) -> Tensor:
    """Return cells `[B, C, rows, columns]` as squares of side pixels, cut to size, `[B, C, H, W]`."""
    return x.repeat_interleave(side, 2).repeat_interleave(side, 3)[..., : size[0], : size[1]]


def draw_masks(count: int, size: tuple[int, int], side: int, ratio: float, device: Any = None) -> Tensor:
    """Return masks `[count, 1, H, W]`, 1 in random squares of side pixels: the share `ratio` of squares, rounded up.

    Squares at the lower and right edges are cut where side does not divide the image. Raises ValueError for a
    side of the image or more.
    """
    rows, columns = (-(-length // side) for length in size)
    if min(rows, columns) < 2:
        raise ValueError(f"mask_patch must be less than the sides of the image, {size[0]} x {size[1]}, got {side}.")
    place = torch.rand(count, rows * columns, device=device).argsort(1).argsort(1)
    masked = place < min(math.ceil(ratio * rows * columns), rows * columns - 1)
    return enlarged(masked.float().view(count, 1, rows, columns), side, size)


class RunningAverage(AveragedModel):
    """The average of a model's weights over steps, in eval mode: each step keeps the share momentum of it."""

    def __init__(self, model: nn.Module, momentum: float) -> None:
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(momentum), use_buffers=True)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor, read: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        """Return `read(average, x)` for images `[B, 3, H, W]`."""
        return read(self.module.eval(), x)


@register(MODELS)
class MaskedImageModel(TaughtClassifier):
    """A timm model that learns to predict what a mask hides from it, by a convolution of one pixel on its last map.

    model_name: of any model of timm, a pyramid or a plain ViT; kwargs are its options, and
    those of `TimmTrainClassifier`. mask_ratio: share of masked squares, mask_patch: their side in pixels. norm_target:
    predict pixels less their mean, over their standard deviation, in each square (He et al., "MAE", arXiv 2111.06377).
    teacher: predict the features of a frozen model instead of pixels, see `TaughtClassifier`: its last map, normalised
    over channels, a mean over each cell of the model's map. momentum: predict those of the model's own running average,
    of which each batch keeps this share (Baevski et al., "data2vec", arXiv 2202.03555).

    The loss is the mean absolute difference where the mask is, as in SimMIM. SimMIM replaces embedded patches by a
    learned token. Here the masked squares of the image are replaced by one learned square, so that a convolutional
    stem, or one whose patches overlap, does not see what is hidden.

    Checkpoints hold the model's weights under its own names; the square and the convolution begin with "pretraining.",
    and are not loaded into other models. Raises ValueError for values out of range.
    """

    def __init__(
        self,
        model_name: str,
        *args: Any,
        mask_ratio: float = 0.6,
        mask_patch: int = 32,
        norm_target: bool = False,
        teacher: dict[str, Any] | None = None,
        momentum: float | None = None,
        **kwargs: Any,
    ) -> None:
        if momentum is not None and (teacher is not None or not 0 <= momentum < 1):
            raise ValueError(f"momentum must be at least 0, below 1 and without a teacher, got {momentum}.")
        if not 0 < mask_ratio < 1 or mask_patch < 1:
            raise ValueError(f"mask_ratio must be in (0, 1), and mask_patch positive, got {mask_ratio}, {mask_patch}.")
        # A checkpoint that is resumed notes the number of classes, too.
        super().__init__(model_name, *args, teacher=teacher, **{**kwargs, "num_classes": 0})
        self.mask_ratio, self.mask_patch, self.norm_target = mask_ratio, mask_patch, norm_target
        last = self.model.feature_info[-1]
        self.stride = last["reduction"]
        self.pretraining = nn.Module()
        if momentum is not None:
            self.pretraining.average = RunningAverage(self.model, momentum)
            channels = out = last["num_chs"]
        elif self.teacher is not None:
            channels = out = self.teacher.model.feature_info[-1]["num_chs"]
        else:
            channels, out = 3, 3 * self.stride**2
        # A vector, which is exempt from weight decay.
        square = nn.init.trunc_normal_(torch.empty(3 * mask_patch**2), std=SQUARE_STD)
        self.pretraining.square, self.pretraining.head = nn.Parameter(square), nn.Conv2d(last["num_chs"], out, 1)
        if "loss" not in kwargs:
            self.loss_module = PixelReconstructionLoss("L1", channel=channels)

    @property
    def teacher(self) -> Any:
        return getattr(self.pretraining, "average", None) or super().teacher

    def hide(self, x: Tensor, masks: Tensor) -> Tensor:
        """Return images `[B, 3, H, W]` with the learned square where masks `[B, 1, H, W]` are 1."""
        height, width = x.shape[-2:]
        square = self.pretraining.square.view(1, 3, self.mask_patch, self.mask_patch)
        tiles = square.repeat(1, 1, -(-height // self.mask_patch), -(-width // self.mask_patch))[..., :height, :width]
        return torch.where(masks > 0, tiles.to(x.dtype), x)

    def predict_hidden(self, x: Tensor, masks: Tensor) -> Tensor:
        """Return the prediction from masked images: pixels `[B, 3, H, W]`, or a teacher's features `[B, C, h, w]`."""
        found = self.pretraining.head(last_map(self.model, self.hide(x, masks))).float()
        if self.teacher is not None:
            return found
        found = F.pixel_shuffle(found, self.stride)
        # The map of an image of another size than a multiple of the stride covers more of it, or less.
        height, width = x.shape[2] - found.shape[2], x.shape[3] - found.shape[3]
        return F.pad(found, (0, width, 0, height))

    def targets(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Return what is to be predicted of images `[B, 3, H, W]`, as a map of this size."""
        if self.teacher is not None:
            features = self.teacher(x, last_map).float()
            features = F.layer_norm(features.movedim(1, -1), features.shape[1:2]).movedim(-1, 1)
            return F.adaptive_avg_pool2d(features, size)
        if not self.norm_target:
            return x
        mean, std = self.statistics(x)
        return (x - mean) / std

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of pixels in the squares of images, each `[B, 3, H, W]`."""
        side, size = self.mask_patch, tuple(x.shape[-2:])
        mean = enlarged(F.avg_pool2d(x.float(), side, ceil_mode=True), side, size)
        variance = enlarged(F.avg_pool2d((x - mean).square(), side, ceil_mode=True), side, size)
        return mean, (variance + MIN_VARIANCE).sqrt()

    def draw(self, x: Tensor) -> Tensor:
        """Return random masks `[B, 1, H, W]` for images, see `draw_masks`."""
        return draw_masks(len(x), tuple(x.shape[-2:]), self.mask_patch, self.mask_ratio, x.device)

    def loss(
        self, inputs: Tensor, data_samples: list[DataSample] | None = None, masks: Tensor | None = None
    ) -> dict[str, Tensor]:
        masks = self.draw(inputs) if masks is None else masks
        if self.training and hasattr(self.pretraining, "average"):
            self.pretraining.average.update_parameters(self.model)
        found = self.predict_hidden(inputs, masks)
        size = tuple(found.shape[-2:])
        return {"loss": self.loss_module(found, self.targets(inputs, size), F.adaptive_avg_pool2d(masks, size))}

    @staticmethod
    def _add_state_dict_prefix(state_dict: dict, prefix: str, *args: Any) -> None:
        own = prefix + PRETRAINING
        for name in [name for name in state_dict if name.startswith(prefix) and not name.startswith(own)]:
            state_dict[f"{prefix}model.{name.removeprefix(prefix)}"] = state_dict.pop(name)
