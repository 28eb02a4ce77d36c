"""Semantic segmentation under MMEngine: a timm backbone, a decoder and a classifier of pixels.

Letters: B images, C classes, H and W height and width.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, PixelData
from timm.layers import to_2tuple
from torch import Tensor
from torch.nn import functional as F

from soft_vit.data.label_maps import IGNORED
from soft_vit.dense.features import TimmFeatures
from soft_vit.dense.segmentation.decoders import DECODERS, EfficientViTDecoder, FCNHead, PixelClassifier
from soft_vit.dense.windows import Patch, Window, class_rows, windows_of
from soft_vit.models.efficientvit import EfficientViTSeg
from soft_vit.ops.numerics import check_choice
from soft_vit.probe.cost import free_memory, image_memory
from soft_vit.registry import MODELS, register
from soft_vit.weights.adapter import Adapter

# The axis of each direction of a flip.
AXES = {"horizontal": -1, "vertical": -2}
# The coarsest map of a backbone has stride 32 and must not be empty.
_MIN_SIDE = 32
# Images with more pixels are large: the memory of one pass is estimated first.
_LARGE = 2**21


@register(MODELS)
class TimmSegmentor(BaseModel):
    """Semantic segmentation with the maps of a timm model.

    backbone: arguments of `TimmFeatures`. decoder: its `kind`, "upernet", "fpn" or "efficientvit", and its options, see
    `soft_vit.dense.segmentation.decoders`; on EfficientViT, gelu and eps are by default the backbone's. num_classes:
    without the unlabelled one. dropout: of channels, before the classifier. auxiliary: a second loss on one map: the
    map's `index`, `loss_weight` and options of `FCNHead`.
    class_weight: positive weight of each class in the losses, which are weighted means over the pixels; None weights
    all equally.

    test_cfg: mode "whole", or "slide" with crop_size and stride (H, W), by default two thirds of crop_size; a stride in
    (0, 1) is a share of it. The scores of overlapping windows are averaged with weights that fall towards a window's
    borders, see `soft_vit.dense.windows.hann`. "whole" takes windows too if an image has more than two megapixels, and
    one pass would take more memory than is free. scales, flip: test-time augmentation: sizes relative to the image's,
    and mirroring, left to right for True or along all subsets of a list of "horizontal" and "vertical"; class
    probabilities are averaged. With one scale, the network sees the image at that size.

    Raises ValueError for an unknown decoder or mode, for maps that the decoder cannot take, and for a stride above
    crop_size.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        decoder: dict[str, Any],
        num_classes: int,
        *,
        dropout: float = 0.1,
        auxiliary: dict[str, Any] | None = None,
        class_weight: Sequence[float] | None = None,
        test_cfg: dict[str, Any] | None = None,
        data_preprocessor: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor)
        decoder = {"kind": "upernet", **decoder}
        make_decoder = DECODERS[check_choice("decoder.kind", decoder.pop("kind"), tuple(DECODERS))]
        # UPerNet normalises the maps itself.
        self.backbone = TimmFeatures(**{"out_norm": not make_decoder.normalises, **backbone})
        needed, strides = make_decoder.strides, tuple(self.backbone.reductions)
        if needed not in (None, strides):
            raise ValueError(f"decoder.kind must be 'upernet' for maps of strides other than {needed}, got {strides}.")
        network = getattr(self.backbone.body, "model", None)
        if isinstance(network, EfficientViTSeg) and make_decoder is EfficientViTDecoder:
            decoder = {**network.conv.keywords, **decoder}
        self.decoder = make_decoder(self.backbone.channels, **decoder)
        self.head = PixelClassifier(self.decoder.out_channels, num_classes, dropout)
        self.auxiliary: FCNHead | None = None
        if auxiliary is not None:
            options = dict(auxiliary)
            self.auxiliary_index = options.pop("index", 2)
            self.auxiliary_weight = options.pop("loss_weight", 0.4)
            self.auxiliary = FCNHead(self.backbone.channels[self.auxiliary_index], num_classes, **options)
        weight = None if class_weight is None else torch.tensor(class_weight, dtype=torch.float32)
        self.register_buffer("class_weight", weight, persistent=False)
        self.test_cfg = _test_options(**(test_cfg or {}))

    def init_weights(self) -> None:
        """Load the backbone's weights; the other parts are initialised at construction."""
        if not self.is_init:
            self.backbone.init_weights()
            self._is_init = True

    def forward(
        self,
        inputs: Tensor | Sequence[Tensor],
        data_samples: Sequence[BaseDataElement] | None = None,
        mode: str = "tensor",
    ) -> Any:
        """Return named losses (mode "loss"), samples with `pred_sem_seg` ("predict") or scores ("tensor").

        inputs: normalised images `[B, 3, H, W]`, or for "predict" also a list of `[3, H, W]`. `pred_sem_seg` is int64
        `[1, H, W]` in the size of the original image, scores are `[B, C, H, W]`.
        """
        if mode == "loss":
            return self.loss(inputs, torch.cat([sample.gt_sem_seg.data for sample in data_samples]))
        if mode == "predict":
            samples = data_samples or [BaseDataElement() for _ in inputs]
            return [self.predict(*pair) for pair in zip(inputs, samples, strict=True)]
        return self.scores(inputs)

    def from_released(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of a released EfficientViT under the names of a segmentor with its parts; others unchanged."""
        network = getattr(self.backbone.body, "model", None)
        of_segmentor = any(name.startswith("backbone.body.") for name in state)
        if of_segmentor or not (isinstance(network, EfficientViTSeg) and isinstance(self.decoder, EfficientViTDecoder)):
            return dict(state)
        names = {"neck.**": "decoder.**", "head.*": "head.conv.*", "**": "backbone.body.model.**"}
        return Adapter(names).from_released(network.adapter.from_released(state))

    def scores(self, images: Tensor) -> Tensor:
        """Turn images `[B, 3, H, W]` of any size into float32 scores `[B, C, H, W]`."""
        return self._at_pixels(self._map(images), images.shape[-2:])

    def _map(self, images: Tensor) -> Tensor:
        """Return the scores `[B, C, h, w]` of padded images, in the resolution of the decoder."""
        return self.head(self.decoder(self.backbone(self._pad(images))))

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the mean cross entropy over the labelled pixels; labels: `[B, H, W]`, 255 where unlabelled."""
        maps = self.backbone(self._pad(images))
        losses = {"loss_pixels": self._cross_entropy(self.head(self.decoder(maps)), labels)}
        if self.auxiliary is not None:
            scores = self.auxiliary(maps[self.auxiliary_index])
            losses["loss_auxiliary"] = self.auxiliary_weight * self._cross_entropy(scores, labels)
        return losses

    def _cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        scores, labels = self._at_pixels(scores, labels.shape[-2:]), labels.long()
        total = F.cross_entropy(scores, labels, self.class_weight, ignore_index=IGNORED, reduction="sum")
        labelled = labels[labels != IGNORED]
        weight = labelled.numel() if self.class_weight is None else self.class_weight[labelled].sum()
        # The loss of a batch without labels is 0.
        return total / weight if labelled.numel() else total

    def _padded(self, size: Sequence[int]) -> list[int]:
        """Return the smallest size (H, W) that contains this one and that the coarsest stride divides."""
        divisor = self.backbone.reductions[-1]
        # Numbers stay positive, as ONNX rounds division to zero.
        return [(max(side, _MIN_SIDE) + divisor - 1) // divisor * divisor for side in size]

    def _pad(self, images: Tensor) -> Tensor:
        (height, width), padded = images.shape[-2:], self._padded(images.shape[-2:])
        return F.pad(images, (0, padded[1] - width, 0, padded[0] - height))

    def _at_pixels(self, scores: Tensor, size: Sequence[int]) -> Tensor:
        """Return scores `[B, C, h, w]` of padded images, in float32, resized and cut to the images' size (H, W)."""
        options = {"mode": self.decoder.resize_mode, "align_corners": False}
        return F.interpolate(scores.float(), size=self._padded(size), **options)[..., : size[0], : size[1]]

    def predict(self, image: Tensor, sample: BaseDataElement) -> BaseDataElement:
        """Add the classes of an image `[3, H, W]` to its sample, at its `ori_shape`."""
        strips = self.strips(image, sample.metainfo.get("ori_shape", image.shape[-2:]))
        sample.pred_sem_seg = PixelData(data=torch.cat([*strips])[None].long())
        return sample

    @torch.no_grad()
    def strips(self, image: Any, size: Sequence[int], first: int = 0, progress: bool = False) -> Iterator[Tensor]:
        """Yield the classes of the rows of an image, in strips `[n, W]`, see `soft_vit.dense.windows.class_rows`.

        image: normalised, `[3, h, w]`, or an object with that shape that returns the pixels of `image[:, rows,
        columns]`. size: (H, W) of the result.
        """
        windows, device = self._windows(image.shape[-2:]), self.head.conv.weight.device
        look, count = partial(self._look, image), self.head.num_classes
        options = {"first": first, "progress": progress, "device": device}
        yield from class_rows(windows, look, image.shape[-2:], size, count, **options)

    def _windows(self, size: Sequence[int]) -> list[Window]:
        """Return the windows of an image (H, W) from top to bottom; in one pass, the image at each scale."""
        options, pixels = self.test_cfg, size[0] * size[1]
        scales, crop, step = (options[name] for name in ("scales", "crop_size", "stride"))
        single = windows_of(size, size, size)[0]
        parts = []
        for scale in scales:
            sides, steps = ([max(round(side / scale), 1) for side in sides] for sides in (crop, step))
            parts += windows_of(size, sides, steps, scale)
        parts = sorted(parts, key=lambda window: (window.rows.start, window.scale, window.columns.start))
        if options["mode"] == "slide":
            return parts
        if pixels > _LARGE:
            device = self.head.conv.weight.device
            needed, free = image_memory(self._map, int(pixels * max(scales) ** 2), device), free_memory(device)
            about = f"one pass takes about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free."
            how = f"in {len(parts)} windows" if needed > free else "as a whole"
            print_log(f"An image of {size[1]} x {size[0]} pixels is seen {how}: {about}", "current")
            if needed > free:
                return parts
        return [single._replace(scale=scale) for scale in scales]

    def _look(self, image: Any, windows: Sequence[Window]) -> list[Patch]:
        """Return the scores of windows of one kind; with several views, sums of probabilities over mirrored ones."""
        images = torch.stack([image[:, window.rows, window.columns] for window in windows])
        if (scale := windows[0].scale) != 1:
            size = [max(round(side * scale), 1) for side in images.shape[-2:]]
            images = F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)
        axes = self.test_cfg["flip"]
        views = [chosen for count in range(len(axes) + 1) for chosen in itertools.combinations(axes, count)]
        size, sums = images.shape[-2:], [0.0] * len(windows)
        for mirrored in views:
            maps = self._map(images.flip(mirrored)).float()
            if len(views) * len(self.test_cfg["scales"]) > 1:
                maps = maps.softmax(1)
            shares = zip(maps.shape[-2:], size, self._padded(size), strict=True)
            extent = tuple(side * own / padded for side, own, padded in shares)
            patches = [Patch(*pair, extent, self.decoder.resize_mode) for pair in zip(windows, maps, strict=True)]
            sums = [total + patch.mirrored(mirrored) for total, patch in zip(sums, patches, strict=True)]
        return [replace(patch, scores=total) for patch, total in zip(patches, sums, strict=True)]


def _test_options(
    mode: str = "whole",
    crop_size: int | Sequence[int] = (512, 512),
    stride: float | Sequence[int] = 2 / 3,
    scales: Sequence[float] = (1.0,),
    flip: bool | Sequence[str] = False,
) -> dict[str, Any]:
    """Return the options of a test in one form; a float as stride is a share of crop_size."""
    check_choice("test_cfg.mode", mode, ("whole", "slide"))
    crop = to_2tuple(crop_size)
    step = tuple(int(side * stride) for side in crop) if isinstance(stride, float) else to_2tuple(stride)
    if step[0] > crop[0] or step[1] > crop[1]:
        raise ValueError(f"test_cfg.stride must be at most crop_size {crop}, got {step}.")
    directions = ("horizontal",) * flip if isinstance(flip, bool) else flip
    axes = [AXES[direction] for direction in directions]
    return {"mode": mode, "crop_size": crop, "stride": step, "scales": scales, "flip": axes}
