"""Semantic segmentation under MMEngine: a timm backbone, a decoder and a classifier of pixels.

Letters: B images, C classes, H and W height and width.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, PixelData
from timm.layers import to_2tuple
from torch import Tensor
from torch.nn import functional as F

from soft_vit.data.label_maps import IGNORED
from soft_vit.dense.features import TimmFeatures
from soft_vit.dense.segmentation.decoders import DECODERS, EfficientViTDecoder, FCNHead, PixelClassifier
from soft_vit.models.efficientvit import EfficientViTSeg
from soft_vit.ops.numerics import check_choice
from soft_vit.registry import MODELS, register
from soft_vit.weights.adapter import Adapter

# The axis of each direction of a flip.
AXES = {"horizontal": -1, "vertical": -2}
# The coarsest map of a backbone has stride 32 and must not be empty.
_MIN_SIDE = 32
# Windows in one batch of a sliding test.
_WINDOWS_AT_ONCE = 4


@register(MODELS)
class TimmSegmentor(BaseModel):
    """Semantic segmentation with the maps of a timm model.

    backbone: arguments of `TimmFeatures`. decoder: its `kind`, "upernet", "fpn" or "efficientvit", and its options, see
    `soft_vit.dense.segmentation.decoders`; on EfficientViT, gelu and eps are by default the backbone's. num_classes:
    without the unlabelled one. dropout: of channels, before the classifier. auxiliary: a second loss on one map: the
    map's `index`, `loss_weight` and options of `FCNHead`.
    class_weight: positive weight of each class in the losses, which are weighted means over the pixels; None weights
    all equally.

    test_cfg: mode "whole", or "slide" with crop_size and stride (H, W), which averages the scores of overlapping
    windows; a stride in (0, 1) is a share of crop_size. scales, flip: test-time augmentation: sizes relative to the
    image's, and mirroring, left to right for True or along all subsets of a list of "horizontal" and "vertical"; class
    probabilities are averaged.

    Raises ValueError for an unknown decoder, mode or direction, for maps that the decoder or `auxiliary` cannot take,
    for another number of weights than classes, and for a stride above crop_size.
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
            check_choice("auxiliary.index", self.auxiliary_index, tuple(range(len(strides))))
            self.auxiliary = FCNHead(self.backbone.channels[self.auxiliary_index], num_classes, **options)
        if class_weight is not None and len(class_weight) != num_classes:
            raise ValueError(f"class_weight must have num_classes={num_classes} values, got {len(class_weight)}.")
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
        if mode == "tensor":
            return self.scores(inputs)
        raise ValueError(f'mode must be "loss", "predict" or "tensor", got {mode!r}.')

    def from_released(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of a released EfficientViT under the names of a segmentor with its parts; others unchanged."""
        network = getattr(self.backbone.body, "model", None)
        of_segmentor = any(name.startswith("backbone.body.") for name in state)
        if of_segmentor or not (isinstance(network, EfficientViTSeg) and isinstance(self.decoder, EfficientViTDecoder)):
            return dict(state)
        names = {"neck.**": "decoder.**", "head.*": "head.conv.*", "**": "backbone.body.model.**"}
        return Adapter(names).from_released(network.adapter.from_released(state))

    def scores(self, images: Tensor, size: Sequence[int] | None = None) -> Tensor:
        """Turn images `[B, 3, H, W]` of any size into float32 scores `[B, C, H, W]`.

        size: the size of scores that are resized bicubically, unless images are padded.
        """
        scores, own_size = self.head(self.decoder(self.backbone(self._pad(images)))), images.shape[-2:]
        if size and self.decoder.resize_mode == "bicubic" and self._padded(own_size) == list(own_size):
            return self._resize(scores, size)
        return self._at_pixels(scores, own_size)

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the mean cross entropy over the labelled pixels; labels: `[B, H, W]`, 255 where unlabelled."""
        maps = self.backbone(self._pad(images))
        losses = {"loss_pixels": self._cross_entropy(self.head(self.decoder(maps)), labels)}
        if self.auxiliary is not None:
            scores = self.auxiliary(maps[self.auxiliary_index])
            losses["loss_auxiliary"] = self.auxiliary_weight * self._cross_entropy(scores, labels)
        return losses

    def _cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        scores = self._at_pixels(scores, labels.shape[-2:])
        labels = labels.long()
        options = {"weight": self.class_weight, "ignore_index": IGNORED, "reduction": "sum"}
        total = F.cross_entropy(scores, labels, **options)
        labelled = labels[labels != IGNORED]
        weight = labelled.numel() if self.class_weight is None else self.class_weight[labelled].sum()
        # The loss of a batch without labels is 0.
        return total / weight if labelled.numel() else total

    def _padded(self, size: Sequence[int]) -> list[int]:
        """Return the smallest size (H, W) that contains this one and that the decoder accepts."""
        divisor = self.decoder.divisor
        # Numbers stay positive, as ONNX rounds division to zero.
        return [(max(side, _MIN_SIDE) + divisor - 1) // divisor * divisor for side in size]

    def _pad(self, images: Tensor) -> Tensor:
        (height, width), padded = images.shape[-2:], self._padded(images.shape[-2:])
        return F.pad(images, (0, padded[1] - width, 0, padded[0] - height))

    def _at_pixels(self, scores: Tensor, size: Sequence[int]) -> Tensor:
        """Return scores `[B, C, h, w]` of padded images, resized and cut to the images' size (H, W)."""
        return self._resize(scores, self._padded(size))[..., : size[0], : size[1]]

    def _resize(self, scores: Tensor, size: Sequence[int]) -> Tensor:
        """Return scores `[B, C, h, w]` as float32 `[B, C, *size]`."""
        return F.interpolate(scores.float(), size=size, mode=self.decoder.resize_mode, align_corners=False)

    @torch.no_grad()
    def predict(self, image: Tensor, sample: BaseDataElement) -> BaseDataElement:
        """Add the classes of an image `[3, H, W]` to its sample, at its `ori_shape`."""
        size = sample.metainfo.get("ori_shape", image.shape[-2:])
        scores = [self._scores_of_view(image[None], size, *view) for view in self._views()]
        if len(scores) > 1:
            scores = [score.softmax(1) for score in scores]
        sample.pred_sem_seg = PixelData(data=sum(scores).argmax(1))
        return sample

    def _views(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Return each scale with each set of axes to mirror."""
        axes = [AXES[direction] for direction in self.test_cfg["flip"]]
        sets = [chosen for count in range(len(axes) + 1) for chosen in itertools.combinations(axes, count)]
        return itertools.product(self.test_cfg["scales"], sets)

    def _scores_of_view(self, image: Tensor, size: tuple[int, int], scale: float, mirrored: tuple[int, ...]) -> Tensor:
        """Return scores `[1, C, *size]` of an image `[1, 3, H, W]` at a scale, mirrored along some axes."""
        if scale != 1:
            seen = [max(round(side * scale), 1) for side in image.shape[-2:]]
            image = F.interpolate(image, size=seen, mode="bilinear", align_corners=False, antialias=True)
        image = image.flip(mirrored)
        if self.test_cfg["mode"] == "slide":
            scores = slide(self.scores, image, self.test_cfg["crop_size"], self.test_cfg["stride"])
        else:
            scores = self.scores(image, size)
        return self._resize(scores.flip(mirrored), size)


def _test_options(
    mode: str = "whole",
    crop_size: int | Sequence[int] = (512, 512),
    stride: float | Sequence[int] | None = None,
    scales: float | Sequence[float] = (1.0,),
    flip: bool | str | Sequence[str] = False,
) -> dict[str, Any]:
    """Return the options of a test in one form; stride: by default crop_size, a float is a share of it."""
    check_choice("test_cfg.mode", mode, ("whole", "slide"))
    crop = to_2tuple(crop_size)
    step = tuple(int(side * stride) for side in crop) if isinstance(stride, float) else to_2tuple(stride or crop)
    if step[0] > crop[0] or step[1] > crop[1]:
        raise ValueError(f"test_cfg.stride must be at most crop_size {crop}, got {step}.")
    directions = ("horizontal",) * flip if isinstance(flip, bool) else (flip,) if isinstance(flip, str) else flip
    if not set(directions) <= AXES.keys():
        raise ValueError(f"test_cfg.flip must be True, False or of {', '.join(AXES)}, got {flip}.")
    scales = scales if isinstance(scales, Sequence) else (scales,)
    return {"mode": mode, "crop_size": crop, "stride": step, "scales": scales, "flip": directions}


def slide(
    network: Callable[[Tensor], Tensor], image: Tensor, crop_size: tuple[int, int], stride: tuple[int, int]
) -> Tensor:
    """Return scores `[1, C, H, W]` of an image `[1, 3, H, W]`, each pixel's mean over its windows.

    network: windows `[B, 3, h, w]` to scores `[B, C, h, w]`. The last window of a row or column ends at the border. All
    have one size: the crop, or the image's where the image is smaller.
    """
    total, count = None, image.new_zeros(image.shape[-2:])
    sides = []
    for length, crop, step in zip(count.shape, crop_size, stride, strict=True):
        last = max(length - crop, 0)
        sides.append([slice(start, start + crop) for start in sorted({*range(0, last, step), last})])
    places = list(itertools.product(*sides))
    for begin in range(0, len(places), _WINDOWS_AT_ONCE):
        group = places[begin : begin + _WINDOWS_AT_ONCE]
        scores = network(torch.cat([image[(..., *place)] for place in group]))
        if total is None:
            total = scores.new_zeros(1, scores.shape[1], *image.shape[-2:])
        for place, score in zip(group, scores, strict=True):
            total[(0, ..., *place)] += score
            count[place] += 1
    return total / count
