"""A timm backbone, a decoder and a head for every pixel, under MMEngine's Runner.

Letters: B images, C classes, H and W height and width.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor
from torch.nn import functional as F

from soft_vit.data.label_maps import IGNORED
from soft_vit.dense.features import TimmFeatures
from soft_vit.dense.segmentation.decoders import DECODERS, FCNHead, PixelClassifier, build_decoder
from soft_vit.dense.segmentation.inference import resize_scores, slide
from soft_vit.dense.segmentation.transforms import AXES
from soft_vit.engine.errors import UserError, one_line
from soft_vit.registry import MODELS, register

__all__ = ["TimmSegmentor"]

# The stride of a backbone's coarsest map, which must have at least one place.
_LEAST_SIDE = 32
_TEST_OPTIONS = {"mode": "whole", "crop_size": None, "stride": None, "scales": (1.0,), "flip": False}


@register(MODELS)
class TimmSegmentor(BaseModel):
    """Semantic segmentation with the maps of a timm model.

    backbone: arguments of `TimmFeatures`. decoder: `kind`, "upernet" or "fpn", and its options, see
    `soft_vit.dense.segmentation.decoders`. num_classes: without the unlabelled one. dropout: of channels, before the
    head. auxiliary: a loss on one of the maps: `index` of the map, `loss_weight`, and options of `FCNHead`; None for
    none. class_weight: what a pixel of each class counts in the losses, which are weighted means; None for equally
    much.

    test_cfg: mode "whole", or "slide" with crop_size and stride (H, W): windows of that size whose scores are averaged
    where they overlap. scales, flip: the image is seen at these multiples of its size, and mirrored as well: left to
    right for True, or along each set of the directions in a list of "horizontal" and "vertical"; class probabilities
    are averaged.

    Raises UserError (a ValueError) for an option that there is not.
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
        kind = decoder.get("kind", "upernet")
        if kind not in DECODERS:
            raise UserError(f"decoder.kind is {kind!r}; choose one of {', '.join(DECODERS)}.")
        # A decoder that normalises the maps itself leaves nothing for a norm before it to do.
        self.backbone = TimmFeatures(**{"out_norm": not DECODERS[kind].normalises, **backbone})
        self.decoder = build_decoder(self.backbone.channels, self.backbone.reductions, **decoder)
        self.head = PixelClassifier(self.decoder.out_channels, num_classes, dropout)
        self.auxiliary: FCNHead | None = None
        if auxiliary is not None:
            options = dict(auxiliary)
            self.auxiliary_index = options.pop("index", 2)
            self.auxiliary_weight = options.pop("loss_weight", 0.4)
            try:
                self.auxiliary = FCNHead(self.backbone.channels[self.auxiliary_index], num_classes, **options)
            except (IndexError, TypeError) as error:
                raise UserError(
                    f"The auxiliary head cannot be built with {auxiliary} on {len(self.backbone.channels)} maps "
                    f"({one_line(error)}); see FCNHead for its options."
                ) from error
        if class_weight is not None and (len(class_weight) != num_classes or min(class_weight) <= 0):
            raise UserError(f"class_weight is {class_weight}; give a weight above 0 for each of {num_classes} classes.")
        weight = None if class_weight is None else torch.tensor(class_weight, dtype=torch.float32)
        self.register_buffer("class_weight", weight, persistent=False)
        self.test_cfg = _checked_test_cfg(test_cfg or {})

    def init_weights(self) -> None:
        """Load the backbone's weights; everything else has initialised itself when it was built."""
        if not self.is_init:
            self.backbone.init_weights()
            self._is_init = True

    def forward(
        self,
        inputs: Tensor | Sequence[Tensor],
        data_samples: Sequence[BaseDataElement] | None = None,
        mode: str = "tensor",
    ) -> Any:
        """Normalised images, `[B, 3, H, W]` or for "predict" also a list of `[3, H, W]`.

        mode "loss": named losses; "predict": the samples with `pred_sem_seg`, int64 [1, H, W] at the size of the
        original image; "tensor": scores `[B, C, H, W]`.
        """
        if mode == "loss":
            return self.loss(inputs, torch.cat([sample.gt_sem_seg.data for sample in data_samples]))
        if mode == "predict":
            samples = data_samples or [BaseDataElement() for _ in inputs]
            return [self.predict(*pair) for pair in zip(inputs, samples, strict=True)]
        if mode == "tensor":
            return self.scores(inputs)
        raise UserError(f'mode is {mode!r}; choose "loss", "predict" or "tensor".')

    def scores(self, images: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` of any size to scores `[B, C, H, W]`, float32."""
        return self._at_pixels(self.head(self.decoder(self.backbone(self._pad(images)))), images.shape[-2:])

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Mean cross entropy over the labelled pixels; labels: `[B, H, W]`, 255 for none."""
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
        # A batch without labels has a loss of 0.
        return total / weight if labelled.numel() else total

    def _padded(self, size: Sequence[int]) -> list[int]:
        """The size (H, W) that the decoder can work with, at least this one."""
        return [-(-max(side, _LEAST_SIDE) // self.decoder.divisor) * self.decoder.divisor for side in size]

    def _pad(self, images: Tensor) -> Tensor:
        (height, width), padded = images.shape[-2:], self._padded(images.shape[-2:])
        return F.pad(images, (0, padded[1] - width, 0, padded[0] - height))

    def _at_pixels(self, scores: Tensor, size: Sequence[int]) -> Tensor:
        """Scores `[B, C, h, w]` of padded images at the pixels of the images of a size (H, W)."""
        return resize_scores(scores, self._padded(size))[..., : size[0], : size[1]]

    @torch.no_grad()
    def predict(self, image: Tensor, sample: BaseDataElement) -> BaseDataElement:
        """Put the classes of an image `[3, H, W]` into its sample, at its `ori_shape`."""
        size = sample.metainfo.get("ori_shape", image.shape[-2:])
        scores = [self._scores_of_view(image[None], size, *view) for view in self._views()]
        if len(scores) > 1:
            scores = [score.softmax(1) for score in scores]
        sample.pred_sem_seg = PixelData(data=sum(scores).argmax(1))
        return sample

    def _views(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Each scale with each set of axes to mirror."""
        axes = [AXES[direction] for direction in self.test_cfg["flip"]]
        sets = [chosen for count in range(len(axes) + 1) for chosen in itertools.combinations(axes, count)]
        return itertools.product(self.test_cfg["scales"], sets)

    def _scores_of_view(self, image: Tensor, size: tuple[int, int], scale: float, mirrored: tuple[int, ...]) -> Tensor:
        """Scores `[1, C, *size]` of an image `[1, 3, H, W]` seen at a scale, mirrored along some axes."""
        if scale != 1:
            seen = [max(round(side * scale), 1) for side in image.shape[-2:]]
            image = F.interpolate(image, size=seen, mode="bilinear", align_corners=False, antialias=True)
        image = image.flip(mirrored)
        if self.test_cfg["mode"] == "slide":
            scores = slide(self.scores, image, self.test_cfg["crop_size"], self.test_cfg["stride"])
        else:
            scores = self.scores(image)
        return resize_scores(scores.flip(mirrored), size)


def _checked_test_cfg(given: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(given) - set(_TEST_OPTIONS))
    if unknown:
        raise UserError(f"test_cfg sets {', '.join(unknown)}; it takes {', '.join(_TEST_OPTIONS)}.")
    options = {**_TEST_OPTIONS, **given}
    if options["mode"] not in ("whole", "slide"):
        raise UserError(f'test_cfg.mode is {options["mode"]!r}; choose "whole" or "slide".')
    if options["mode"] == "slide":
        for name in ("crop_size", "stride"):
            value = options[name]
            pair = (value, value) if isinstance(value, int) else tuple(value or ())
            if len(pair) != 2 or min(pair) < 1:
                raise UserError(f"test_cfg.{name} is {value}; sliding needs (height, width) in pixels.")
            options[name] = pair
        if any(step > crop for step, crop in zip(options["stride"], options["crop_size"], strict=True)):
            raise UserError(
                f"test_cfg.stride is {options['stride']}, more than crop_size {options['crop_size']}: pixels between "
                "windows would have no class; choose at most the crop."
            )
    if isinstance(options["flip"], bool):
        options["flip"] = ("horizontal",) * options["flip"]
    if isinstance(options["flip"], str) or set(options["flip"]) - set(AXES):
        raise UserError(f"test_cfg.flip is {options['flip']!r}; give True, False or a list of {', '.join(AXES)}.")
    if not options["scales"] or min(options["scales"]) <= 0:
        raise UserError(f"test_cfg.scales is {options['scales']}; give at least one factor above 0.")
    return options
