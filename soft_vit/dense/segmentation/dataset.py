"""Images with label maps as an MMEngine data set."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

from soft_vit.data.archives import StoredFile
from soft_vit.data.images import BadImage, load_image
from soft_vit.data.label_maps import check_size, find_label_maps
from soft_vit.engine.data.bad_images import ReadingDataset, require_data_root
from soft_vit.engine.data.datasets import hold_out
from soft_vit.registry import DATASETS, register


@register(DATASETS)
class LabelMapTree(ReadingDataset):
    """Images and label maps in the layout of ADE20K, or of Cityscapes.

    data_root, split, classes, reduce_zero_label, labels, ann_dir: see `soft_vit.data.label_maps.find_label_maps`; a
    value of reduce_zero_label that seems wrong is logged. val_fraction: with ann_dir, the share of the images to hold
    out, in [0, 1), drawn with a fixed seed; held_out: use these images instead of the others. bits, upright: see
    `soft_vit.data.images.decode_image`. A sample enters the pipeline as `img` (uint8 `[3, H, W]`, RGB), `gt_seg_map`
    (uint8 `[H, W]`, 255 where unlabelled), `img_path`, `ori_shape` (H, W) and `sample_idx`.

    Images without a label map are left out and logged. In training, another pair replaces
    one that cannot be read or whose label map does not fit, see `ReadingDataset`. In a test, a black image replaces an
    unreadable image and keeps its labels; a label map that cannot be used raises ValueError, and so does a missing one
    without ann_dir. Raises ValueError or FileNotFoundError for a tree that cannot be used.
    """

    def __init__(
        self,
        data_root: str | None = None,
        split: str = "training",
        classes: Sequence[str] | None = None,
        reduce_zero_label: bool = False,
        upright: bool | None = None,
        labels: str | None = None,
        ann_dir: str | None = None,
        val_fraction: float = 0.0,
        held_out: bool = False,
        **kwargs: Any,
    ) -> None:
        require_data_root(data_root)
        self.upright = upright
        options = {"classes": classes, "reduce_zero_label": reduce_zero_label, "labels": labels, "ann_dir": ann_dir}
        self.maps = find_label_maps(data_root, split, **options)
        missing = self.maps.missing
        if missing and kwargs.get("test_mode") and ann_dir is None:
            raise ValueError(f"{self.maps.maps.path} must hold a label map of each test image, such as {missing[0]}.")
        # The other part of the images has the same problems.
        self._logs = not held_out
        if ann_dir is not None:
            self.maps.pairs = hold_out(self.maps.pairs, val_fraction, held_out)
        super().__init__(metainfo={"classes": tuple(self.maps.classes)}, **kwargs)

    def load_data_list(self) -> list[dict]:
        for sentence in self.maps.doubts() if self._logs else ():
            print_log(sentence, "current", logging.WARNING)
        # MMEngine serialises the list; the pairs would only take memory in each worker.
        pairs, self.maps.pairs = self.maps.pairs, []
        return [{"files": (tuple(image), tuple(labels))} for image, labels in pairs]

    def number_like(self, classes: Sequence[str]) -> None:
        """Number the classes by their place in `classes`, which holds all of them."""
        self.maps.numbers = [list(classes).index(name) for name in self.maps.classes]
        self._metainfo["classes"] = tuple(classes)

    def read(self, info: dict) -> tuple[Image.Image, np.ndarray]:
        """Return the image and its classes, uint8 `[H, W]`. Raises BadImage."""
        return self.maps.load(_entries(info), bits=self.bits, upright=self.upright)

    def annotated(self, info: dict) -> tuple[str, Image.Image, dict[str, Any]]:
        """Return the name of an image, the image and its classes, see `soft_vit.dense.report.drawn`."""
        image, classes = self.read(info)
        return _entries(info)[0].name, image, {"classes": classes}

    def substitute(self, info: dict) -> tuple[Image.Image, np.ndarray]:
        """Return a black image with the label map. Raises ValueError if the label map cannot be used."""
        file, labels = _entries(info)
        try:
            classes = self.maps.load_labels(labels)
            image = Image.new("RGB", classes.shape[::-1])
            with suppress(BadImage):
                image = load_image(self.maps.images, file, size=classes.shape, bits=self.bits, upright=self.upright)
            check_size(labels, classes, image)
        except BadImage as error:
            raise ValueError(f"A test needs every label map, repair {error}.") from error
        return Image.new("RGB", classes.shape[::-1]), classes

    def pack(self, info: dict, content: tuple[Image.Image, np.ndarray]) -> Any:
        image, labels = content
        known = {"img_path": _entries(info)[0].name, "ori_shape": labels.shape, "sample_idx": info["sample_idx"]}
        return self.pipeline({"img": pil_to_tensor(image), "gt_seg_map": torch.from_numpy(labels), **known})


def _entries(info: dict) -> tuple[StoredFile, StoredFile]:
    return tuple(StoredFile(*file) for file in info["files"])
