"""The generated shapes as a data set of MMEngine."""

from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset

from soft_vit.data import CLASSES, ShapeImages
from soft_vit.registry import DATASETS, register

__all__ = ["ShapesDataset"]


@register(DATASETS)
class ShapesDataset(BaseDataset):
    """`soft_vit.data.ShapeImages` with a pipeline.

    length: images in the split. split: "train", "val" or "test". seed: of the data set. size: pixels, one number or
    (H, W). cache: keep drawn images in memory (H * W * 3 bytes each, in each worker): only the first epoch draws.
    A sample enters the pipeline as `img` (uint8 [H, W, 3], RGB, so `to_rgb=False`), `img_shape`, `ori_shape`,
    `gt_label`, `sample_idx`. Raises ValueError for a bad length, split or size.
    """

    METAINFO = {"classes": CLASSES}  # noqa: RUF012  the name and the kind are MMEngine's

    def __init__(
        self,
        length: int,
        split: str = "train",
        seed: int = 0,
        size: int | tuple[int, int] = 64,
        cache: bool = True,
        pipeline: list = (),
        **kwargs: Any,
    ) -> None:
        self.images = ShapeImages(length, split, seed, tuple(size) if isinstance(size, list) else size)
        self._drawn: dict[int, np.ndarray] | None = {} if cache else None
        # Labels are a few integers: nothing to gain from serialised storage.
        super().__init__(pipeline=pipeline, serialize_data=False, **kwargs)

    def load_data_list(self) -> list[dict]:
        return [{"gt_label": self.images.label(i), "position": i} for i in range(len(self.images))]

    def get_data_info(self, idx: int) -> dict:
        """The sample as the pipeline receives it, drawn or from memory."""
        info = super().get_data_info(idx)
        position = info.pop("position")
        image = self._drawn.get(position) if self._drawn is not None else None
        if image is None:
            image = self.images[position].image
            if self._drawn is not None:
                self._drawn[position] = image
        # A transform may write into its image.
        return {**info, "img": image.copy(), "img_shape": image.shape[:2], "ori_shape": image.shape[:2]}

    def get_cat_ids(self, idx: int) -> list[int]:
        return [self.images.label(super().get_data_info(idx)["position"])]
