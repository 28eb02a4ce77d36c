"""torchvision's detectors and feature pyramid, under MMEngine and on any timm model.

Letters: n objects in an image, H and W its height and width.
"""

import inspect
import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7
from torchvision.ops.poolers import LevelMapper

from soft_vit.dense.features import TimmFeatures
from soft_vit.engine.data.preprocessor import in_bytes

ASPECT_RATIOS = (0.5, 1.0, 2.0)


class SimplePyramid(nn.Module):
    """Maps of strides up to 32, made from the last map of a plain model (ViTDet, Li et al. 2022, arXiv 2203.16527).

    features: of one map, whose stride is a power of 2. stride: of the first map that is made. A transposed convolution
    makes finer maps, max pooling coarser ones.
    """

    def __init__(self, features: TimmFeatures, stride: int) -> None:
        super().__init__()
        self.features = features
        (width,), (own,) = features.channels, features.reductions
        self.reductions = [side for side in (4, 8, 16, 32) if side >= stride]
        self.channels = [width] * len(self.reductions)
        self.layers = nn.ModuleList(
            nn.ConvTranspose2d(width, width, own // side, own // side) if side < own else nn.MaxPool2d(side // own)
            for side in self.reductions
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        (last,) = self.features(x)
        return [layer(last) for layer in self.layers]

    def init_weights(self) -> None:
        self.features.init_weights()


class FeaturePyramid(nn.Module):
    """A backbone and its pyramid (Lin et al., arXiv 1612.03144), in the form that torchvision's detectors expect.

    backbone: arguments of `TimmFeatures`; out_indices defaults to all maps of `stride` and more, and of a plain model,
    whose maps have one stride, to the last one, from which `SimplePyramid` makes others. channels: of every map of the
    pyramid. extra: what follows the last map, "pool" for its subsampling by 2 (Faster R-CNN) or "conv" for two
    convolutions of stride 2 on the backbone's last map (P6 and P7 of RetinaNet).

    Attributes: out_channels of every map, names of the levels made from the backbone's maps, num_levels of all, and
    colours, the mean and std that the backbone's weights expect, as torchvision's options.
    """

    def __init__(self, backbone: dict[str, Any], *, channels: int, stride: int, extra: str) -> None:
        super().__init__()
        body = TimmFeatures(**backbone, min_stride=stride)
        self.colours = {f"image_{key}": list(body.spec.cfg[key]) for key in ("mean", "std") if key in body.spec.cfg}
        self.body: TimmFeatures | SimplePyramid = body
        if "out_indices" not in backbone and set(body.reductions) in ({4}, {8}, {16}, {32}):
            last = body.body.feature_info.out_indices[-1]
            self.body = SimplePyramid(TimmFeatures(**backbone, out_indices=(last,)), stride)
        widths, strides = self.body.channels, self.body.reductions
        if any(coarse != 2 * fine for fine, coarse in itertools.pairwise(strides)):
            # Sizes of anchors and the choice of a level for each box count on it.
            found = ", ".join(map(str, strides))
            raise ValueError(f"out_indices must select maps whose strides double from one to the next, got {found}.")
        if extra == "conv" and widths[-1] == channels:
            # torchvision would compute P6 from P5 instead of that map.
            raise ValueError(f"pyramid_channels must differ from the channels of the last map, got {channels}.")
        blocks = LastLevelP6P7(widths[-1], channels) if extra == "conv" else LastLevelMaxPool()
        self.fpn = FeaturePyramidNetwork(widths, channels, extra_blocks=blocks)
        self.out_channels = channels
        self.names = [str(index) for index in range(len(widths))]
        self.num_levels = len(widths) + (2 if extra == "conv" else 1)

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Turn normalised images `[B, 3, H, W]` into maps `[B, channels, H_i, W_i]`, the largest first."""
        return self.fpn(OrderedDict(zip(self.names, self.body(images), strict=True)))


def roi_pool(pyramid: FeaturePyramid, size: int) -> MultiScaleRoIAlign:
    """Return RoIAlign on the maps of the backbone, to `[boxes, channels, size, size]`, with their true strides.

    torchvision would guess them from the first batch and keep them.
    """
    pool = MultiScaleRoIAlign(pyramid.names, size, sampling_ratio=2)
    strides = pyramid.body.reductions
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = LevelMapper(int(math.log2(strides[0])), int(math.log2(strides[-1])))
    return pool


class TorchvisionDetector(BaseModel):
    """A detector of torchvision with MMEngine's `forward(inputs, data_samples, mode)`.

    detector: a `torchvision.models.detection` model on a `FeaturePyramid`. first_label: its label of class 0. heads:
    parts of it that return float32 under autocast. options: of MMEngine's BaseModel.

    Images are `[3, H, W]` in RGB, each of its own size, uint8 or of another type that `in_bytes` takes; torchvision's
    transform normalises, resizes and pads them. Boxes are (x0, y0, x1, y1) in pixels of the given image; labels count
    from 0.
    """

    def __init__(
        self, detector: nn.Module, *, num_classes: int, first_label: int, heads: Sequence[nn.Module], **options: Any
    ) -> None:
        super().__init__(**options)
        self.detector, self.num_classes, self.first_label = detector, num_classes, first_label
        for head in heads:
            # Losses and boxes need more than bfloat16.
            head.register_forward_hook(lambda module, args, output: tree_map(Tensor.float, output))

    def init_weights(self) -> None:
        """Load the backbone's weights; torchvision and timm initialised the others at construction."""
        if not self.is_init:
            self.detector.backbone.body.init_weights()
            self._is_init = True

    def forward(
        self, inputs: Sequence[Tensor], data_samples: Sequence[BaseDataElement] | None = None, mode: str = "tensor"
    ) -> Any:
        """Return losses by name (mode "loss"), samples with `pred_instances` ("predict") or the pyramid ("tensor").

        `pred_instances` has bboxes float32 `[n, 4]`, scores `[n]`, labels int64 `[n]` and, for Mask R-CNN, masks bool
        `[n, H, W]`, sorted by falling score. Images are predicted one by one, so that a result does not depend on the
        batch: padding to a common size would change what attention sees of an image.
        """
        images = [in_bytes(image).float() / 255 for image in inputs]
        if mode == "loss":
            losses = self.detector(images, [self._target(sample) for sample in data_samples])
            # MMEngine sums only what has "loss" in its name.
            return {name if "loss" in name else f"loss_{name}": value for name, value in losses.items()}
        if mode == "predict":
            pairs = zip(images, data_samples or [BaseDataElement() for _ in images], strict=True)
            return [self._predicted(self.detector([image])[0], sample) for image, sample in pairs]
        return tuple(self.detector.backbone(self.detector.transform(images)[0].tensors).values())

    def _target(self, sample: BaseDataElement) -> dict[str, Tensor]:
        objects = sample.gt_instances
        target = {"boxes": objects.bboxes, "labels": objects.labels + self.first_label}
        if "masks" in objects:
            target["masks"] = objects.masks
        return target

    def _predicted(self, output: Mapping[str, Tensor], sample: BaseDataElement) -> BaseDataElement:
        labels = output["labels"] - self.first_label
        objects = InstanceData(bboxes=output["boxes"].float(), scores=output["scores"].float(), labels=labels)
        if "masks" in output:
            objects.masks = output["masks"][:, 0] > 0.5
        sample.pred_instances = objects
        return sample


def check_options(detector: type[nn.Module], options: Mapping[str, Any]) -> None:
    """Raise ValueError for unknown options, which a torchvision detector would ignore."""
    # GeneralizedRCNNTransform has the last two; torchvision would ignore unknown names.
    known = {*inspect.signature(detector).parameters, "size_divisible", "fixed_size"} - {"backbone", "kwargs"}
    if unknown := sorted(options.keys() - known):
        raise ValueError(f"Options must be of {detector.__name__} ({', '.join(sorted(known))}), got {unknown[0]}.")


def make_anchors(
    sizes: Sequence[float | Sequence[float]] | None, pyramid: FeaturePyramid, octaves: int, scale: float
) -> AnchorGenerator:
    """Return the anchors of each level, in `ASPECT_RATIOS`.

    sizes: sides of square anchors in pixels, one or several for each level. By default `scale` times the level's
    stride, which doubles from level to level, and `octaves` - 1 sizes between two levels (Lin et al., arXiv 1708.02002,
    Sec. 4).
    """
    if sizes is None:
        smallest, steps = scale * pyramid.body.reductions[0], range(octaves)
        sizes = [[smallest * 2 ** (level + i / octaves) for i in steps] for level in range(pyramid.num_levels)]
    levels = tuple(tuple(size) if isinstance(size, Sequence) else (size,) for size in sizes)
    return AnchorGenerator(levels, (ASPECT_RATIOS,) * len(levels))
