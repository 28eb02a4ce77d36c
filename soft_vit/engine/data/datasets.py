"""Data sets of labelled images: on disk, and generated."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from PIL import Image

from soft_vit.data import CLASSES, ShapeImages
from soft_vit.data.archives import StoredFile
from soft_vit.data.images import find_images, find_multi_label_images
from soft_vit.engine.data.bad_images import ReadingDataset, require_data_root
from soft_vit.engine.data.named import find_named_images
from soft_vit.registry import DATASETS, register


@register(DATASETS)
class ImageTree(ReadingDataset):
    """A tree of class folders, also in a TAR or ZIP, or a folder with a list of labels; with a pipeline.

    data_root, split, classes: see `soft_vit.data.images.find_images`. multi_label: images have any number of classes,
    which a list names, see `find_multi_label_images`. val_fraction: the share of the images of each class to hold out,
    in [0, 1), drawn with a fixed seed; held_out: use these images instead of the others.

    A sample enters the pipeline as `img` (an RGB image of Pillow), `img_path`, `gt_label` (with several classes
    `gt_score`, float32 `[classes]` of 0 and 1), `sample_idx`. In a test a black image replaces an unreadable one.
    Raises ValueError or FileNotFoundError for a tree that does not fit.
    """

    def __init__(
        self,
        data_root: str | None = None,
        split: str = "train",
        classes: Sequence[str] | None = None,
        multi_label: bool = False,
        val_fraction: float = 0.0,
        held_out: bool = False,
        **kwargs: Any,
    ) -> None:
        require_data_root(data_root)
        find = find_multi_label_images if multi_label else find_images
        self.images = find(data_root, split, classes=classes)
        print_log(f"{self.images.storage.path}: {self.images.summary()}", "current")
        self._samples, self.images.samples = self.images.samples, []
        if val_fraction:
            self._samples = part_of(self._samples, self.images.classes, val_fraction, held_out)
        self._numbers = list(range(len(self.images.classes)))
        super().__init__(metainfo={"classes": tuple(self.images.classes)}, **kwargs)

    def load_data_list(self) -> list[dict]:
        # MMEngine serialises them; plain copies would grow in each worker.
        samples, self._samples = self._samples, []
        return [{"entry": tuple(entry), "gt_label": label} for entry, label in samples]

    def number_like(self, classes: Sequence[str]) -> None:
        """Number the classes by their place in `classes`, which holds all of them."""
        self._numbers = [list(classes).index(name) for name in self.images.classes]
        self._metainfo["classes"] = tuple(classes)

    def get_data_info(self, idx: int) -> dict:
        info = super().get_data_info(idx)
        label = info.pop("gt_label")
        if isinstance(label, int):
            return {**info, "gt_label": self._numbers[label]}
        score = np.zeros(len(self.metainfo["classes"]), dtype=np.float32)
        score[[self._numbers[i] for i in label]] = 1
        return {**info, "gt_score": score}

    def get_cat_ids(self, idx: int) -> list[int]:
        """Return the classes of an image, for wrappers such as ClassBalancedDataset."""
        info = self.get_data_info(idx)
        return [info["gt_label"]] if "gt_label" in info else np.flatnonzero(info["gt_score"]).tolist()

    def read(self, info: dict) -> Image.Image:
        return self.images.load(StoredFile(*info["entry"]), bits=self.bits)


@register(DATASETS)
class TimmDataset(ReadingDataset):
    """A data set by the name that timm gives it, with a pipeline.

    name, split, download: see `soft_vit.engine.data.named.find_named_images`. data_root: the folder of its files.
    classes: their names, where the data set has none. A sample enters the pipeline as one of `ImageTree`.
    """

    def __init__(
        self,
        name: str,
        data_root: str = "data",
        split: str = "train",
        download: bool = False,
        classes: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.images = find_named_images(name, data_root, split, download)
        names = classes if classes is not None else self.images.classes
        super().__init__(metainfo={"classes": tuple(names)} if names else {}, **kwargs)

    def load_data_list(self) -> list[dict]:
        return [{"position": i} for i in range(len(self.images))]

    def get_data_info(self, idx: int) -> dict:
        info = super().get_data_info(idx)
        return {**info, "gt_label": self.images.label(info["position"])}

    get_cat_ids = ImageTree.get_cat_ids

    def read(self, info: dict) -> Image.Image:
        return self.images.image(info["position"], self.bits)


def hold_out(items: Sequence[Any], val_fraction: float, held_out: bool) -> list[Any]:
    """Return the items that are held out, or the others, without regard to classes; with a fraction of 0, all."""
    pairs = [(item, 0) for item in items]
    return [item for item, _ in (part_of(pairs, ("",), val_fraction, held_out) if val_fraction or held_out else pairs)]


def part_of(
    samples: list[tuple[Any, Any]], classes: Sequence[str], val_fraction: float, held_out: bool
) -> list[tuple[Any, Any]]:
    """Return the samples that are held out, or the others: at equal distances in a random order sorted by label.

    The only one of a class is not held out. Raises ValueError if all images of another class are.
    """
    if not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction must be in (0, 1) to hold images out, got {val_fraction}.")
    order = np.random.default_rng(0).permutation(len(samples)).tolist()
    order.sort(key=lambda i: samples[i][1])
    chosen = {i for place, i in enumerate(order) if (place + 0.5) * val_fraction % 1 < val_fraction}
    counts = Counter(label for _, label in samples if isinstance(label, int))
    chosen = {i for i in chosen if counts[samples[i][1]] != 1}
    labels = [label if isinstance(label, tuple) else (label,) for _, label in samples]
    trained = {one for i, several in enumerate(labels) if i not in chosen for one in several}
    if lost := sorted({one for several in labels for one in several} - trained):
        raise ValueError(f"val_fraction must leave samples of {classes[lost[0]]} to train on, got {val_fraction}.")
    return [one for i, one in enumerate(samples) if (i in chosen) == held_out]


@register(DATASETS)
class ShapesDataset(BaseDataset):
    """`soft_vit.data.ShapeImages` with a pipeline.

    length: images in the split. split: "train", "val" or "test". seed: of the data set. size: pixels, one number or
    (H, W). scene: `shape` or `tiles`, see `soft_vit.data.demo.shapes`. Drawn images stay in memory (H * W * 3 bytes
    each, in each worker), so only the first epoch draws.
    A sample enters the pipeline as `img` (uint8 [H, W, 3], RGB, so `to_rgb=False`), `img_shape`, `ori_shape`,
    `gt_label`, `sample_idx`. Raises ValueError for an unknown split or scene.
    """

    METAINFO = {"classes": CLASSES}  # noqa: RUF012  the name and the kind are MMEngine's

    def __init__(
        self,
        length: int,
        split: str = "train",
        seed: int = 0,
        size: int | tuple[int, int] = 64,
        scene: str = "shape",
        pipeline: list = (),
        indices: int | Sequence[int] | None = None,
        test_mode: bool = False,
    ) -> None:
        self.images = ShapeImages(length, split, seed, size, scene)
        self._drawn: dict[int, np.ndarray] = {}
        # Labels are a few integers, which serialised storage would not make smaller.
        how = dict(pipeline=pipeline, indices=indices, test_mode=test_mode, serialize_data=False)
        super().__init__(metainfo={"classes": self.images.classes}, **how)

    def load_data_list(self) -> list[dict]:
        return [{"gt_label": self.images.label(i), "position": i} for i in range(len(self.images))]

    def get_data_info(self, idx: int) -> dict:
        """Return the sample as the pipeline receives it, drawn or from memory."""
        info = super().get_data_info(idx)
        position = info.pop("position")
        if position not in self._drawn:
            self._drawn[position] = self.images[position].image
        # Transforms may write into the image.
        image = self._drawn[position].copy()
        return {**info, "img": image, "img_shape": image.shape[:2], "ori_shape": image.shape[:2]}
