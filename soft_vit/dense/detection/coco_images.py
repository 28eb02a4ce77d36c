"""Images with COCO annotations as an MMEngine data set.

Letters: n objects in an image, H and W its height and width.
"""

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.structures import BaseDataElement, InstanceData
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from soft_vit.data.archives import StoredFile, path_below, require_storage
from soft_vit.data.coco import CocoImage, read_coco
from soft_vit.data.coco_masks import decode_segmentation
from soft_vit.data.images import BadImage, LabelledImages
from soft_vit.engine.data.bad_images import ReadingDataset, require_data_root
from soft_vit.engine.data.datasets import hold_out
from soft_vit.engine.data.transforms import build_transform
from soft_vit.registry import DATASETS, register

_FLIP = ({"type": "RandomHorizontalFlip", "p": 0.5},)


@register(DATASETS)
class CocoImages(ReadingDataset):
    """Images of a folder, TAR or ZIP with the boxes, and optionally masks, of a COCO annotation file.

    data_root: folder of the data. ann_file, img_dir: annotation file and folder of the images below it (or their TAR or
    ZIP, without its ending); ann_file may also be a path of its own. masks: load masks too. val_fraction: the share of
    the file's images to hold out, in [0, 1), drawn with a fixed seed; held_out: use these images instead of the others.
    filter_empty: drop training images without an object to train on. transforms: of torchvision.transforms.v2, each as
    `dict(type=NAME, ...)`, applied in training to the image, its boxes and masks together; by default a horizontal
    flip. test_mode: keep all images, without targets and transforms. bits, upright: see
    `soft_vit.data.images.decode_image`.

    A sample has `inputs`, the RGB image as uint8 `[3, H, W]`, and `data_samples`, a BaseDataElement with `img_id`,
    `img_path` and `ori_shape` (H, W). In training it has `gt_instances`: bboxes float32 `[n, 4]` as (x0, y0, x1, y1),
    labels int64 `[n]` from 0 and masks uint8 `[n, H, W]`, without crowds. In a test it has `objects`, the image's
    annotations as in the file, for `CocoAP`.

    Bad annotations are left out and logged (see `soft_vit.data.coco`). Training data has the attributes sizes, (width,
    height) of each image; counts, the objects of each class; left_out, what is not trained on, in words. An image that
    is unreadable or differs from the annotated size is replaced, in a test by a black one (see `ReadingDataset`).
    Raises ValueError or FileNotFoundError for data that cannot be used at all.
    """

    def __init__(
        self,
        data_root: str | None = None,
        ann_file: str | None = "annotations/instances_train2017.json",
        img_dir: str = "train2017",
        *,
        masks: bool = False,
        val_fraction: float = 0.0,
        held_out: bool = False,
        filter_empty: bool = True,
        transforms: Sequence[dict] = _FLIP,
        test_mode: bool = False,
        upright: bool | None = None,
        **kwargs: Any,
    ) -> None:
        require_data_root(data_root)
        if ann_file is None:
            raise ValueError("ann_file must be the annotation file in COCO's format (--cfg-options), got None.")
        self.upright = upright
        root = Path(data_root).expanduser()
        storage = require_storage(root, img_dir)
        # A file_name may begin with the last folders of img_dir.
        parts = PurePosixPath(img_dir).parts
        starts = ["/".join([*parts[i:], ""]) for i in range(len(parts) + 1)]
        files = storage.entries()
        self._entries = {start + entry.name: entry for start in starts for entry in files}
        self._annotations = read_coco(path_below(root, ann_file), self._entries.keys(), masks=masks)
        names = self._annotations.classes
        self.images = LabelledImages(storage, names, [])
        self.masks, self.filter_empty = masks, filter_empty
        self.transforms = [] if test_mode else [build_transform(config, v2) for config in transforms]
        # The other part of the file has the same problems.
        self._logs = not held_out
        self._annotations.images = hold_out(self._annotations.images, val_fraction, held_out)
        metainfo = {"classes": tuple(names), "category_ids": tuple(self._annotations.category_ids)}
        super().__init__(metainfo=metainfo, test_mode=test_mode, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Return an entry for each image, with its targets for training or its annotations for a test."""
        images = self._annotations.images
        for sentence in self._annotations.problems.sentences() if self._logs else ():
            print_log(f"{self._annotations.path}: {sentence}", "current", logging.WARNING)
        if not self.test_mode:
            listed, images = images, [image for image in images if image.has_file]
            if self.filter_empty:
                images = [image for image in images if image.trainable.any()]
            if not images:
                raise ValueError(f"{self._annotations.path} must have an object to train on.")
            self._describe(listed, images)
        entries = [self._entry_of(image) for image in images]
        # MMEngine serialises the list; these would only take memory in each worker.
        del self._annotations, self._entries
        return entries

    def _describe(self, listed: Sequence[CocoImage], images: Sequence[CocoImage]) -> None:
        labels = np.concatenate([image.labels[image.trainable] for image in images])
        self.counts = np.bincount(labels, minlength=len(self._annotations.classes))
        self.sizes = [(image.width, image.height) for image in images]
        with_file = sum(image.has_file for image in listed)
        crowds = sum(one["iscrowd"] for image in listed for one in image.objects)
        reasons = {
            "images without a file": len(listed) - with_file,
            "images without an object": with_file - len(images),
            "crowds or objects to ignore": crowds,
            "empty boxes": sum((~image.trainable).sum() for image in listed) - crowds,
        }
        self.left_out = [f"{reason} {count:,}" for reason, count in reasons.items() if count]

    def annotated(self, info: dict) -> tuple[str, Image.Image, dict[str, Any]]:
        """Return the name of a training image, the image and its objects, see `soft_vit.dense.report.drawn`."""
        masks = [decode_segmentation(one, *info["ori_shape"]) for one in info.get("segmentations", ())]
        found = {"boxes": info["boxes"], "labels": info["labels"].tolist()}
        return info["entry"][0], self.read(info), found | ({"masks": np.stack(masks).astype(bool)} if masks else {})

    def number_like(self, classes: Sequence[str]) -> None:
        """Number the classes by their place in `classes`, which holds all of them."""
        ids = dict(zip(self._metainfo["classes"], self._metainfo["category_ids"], strict=True))
        # Missing classes get unused numbers: classes without objects do not enter the mean.
        free = itertools.count(max(ids.values()) + 1)
        numbers = tuple(ids[name] if name in ids else next(free) for name in classes)
        self._metainfo.update(classes=tuple(classes), category_ids=numbers)

    def _entry_of(self, image: CocoImage) -> dict:
        entry = self._entries.get(image.file_name, StoredFile(image.file_name))
        info = {"entry": tuple(entry), "img_id": image.id, "ori_shape": (image.height, image.width)}
        if self.test_mode:
            return {**info, "has_file": image.has_file, "objects": image.objects}
        keep = image.trainable
        info |= {"boxes": image.boxes[keep], "labels": image.labels[keep]}
        if self.masks:
            info["segmentations"] = [image.objects[index]["segmentation"] for index in keep.nonzero()[0]]
        return info

    def read(self, info: dict) -> Image.Image:
        if not info.get("has_file", True):
            raise BadImage(f"{info['entry'][0]}: the file does not exist")
        height, width = info["ori_shape"]
        image = self.images.load(StoredFile(*info["entry"]), bits=self.bits, size=(height, width), upright=self.upright)
        if image.size != (width, height):
            found = f"{image.width} x {image.height}"
            raise BadImage(f"{info['entry'][0]}: has {found} pixels and is annotated as {width} x {height}")
        return image

    def substitute(self, info: dict) -> Image.Image:
        height, width = info["ori_shape"]
        return Image.new("RGB", (width, height))

    def pack(self, info: dict, content: Image.Image) -> dict[str, Any]:
        known = {"img_id": info["img_id"], "img_path": info["entry"][0], "ori_shape": info["ori_shape"]}
        sample = BaseDataElement(metainfo=known)
        pixels = F.pil_to_tensor(content)
        if self.test_mode:
            sample.set_metainfo({"objects": info["objects"]})
        else:
            pixels, sample.gt_instances = self._augment(pixels, info)
        return {"inputs": pixels, "data_samples": sample}

    def _augment(self, pixels: Tensor, info: dict) -> tuple[Tensor, InstanceData]:
        size = info["ori_shape"]
        parts = {
            "image": tv_tensors.Image(pixels),
            "boxes": tv_tensors.BoundingBoxes(torch.from_numpy(info["boxes"]), format="XYXY", canvas_size=size),
            "labels": torch.from_numpy(info["labels"]),
        }
        if self.masks:
            masks = [decode_segmentation(segmentation, *size) for segmentation in info["segmentations"]]
            parts["masks"] = tv_tensors.Mask(np.stack(masks) if masks else np.zeros((0, *size), np.uint8))
        for transform in self.transforms:
            parts = transform(parts)
        boxes = F.clamp_bounding_boxes(parts["boxes"]).as_subclass(Tensor)
        # A crop may remove objects, or the part of them that fills their box.
        keep = (boxes[:, 2:] > boxes[:, :2]).all(1)
        if self.masks:
            keep &= (parts["masks"].as_subclass(Tensor) != 0).flatten(1).any(1)
        objects = InstanceData(bboxes=boxes[keep], labels=parts["labels"][keep])
        if self.masks:
            objects.masks = parts["masks"].as_subclass(Tensor)[keep]
        return parts["image"].as_subclass(Tensor), objects
