"""Bags of features, as a data set of MMEngine."""

import csv
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset
from mmpretrain.structures import DataSample
from torch import Tensor

from soft_vit.data.features import read_features
from soft_vit.data.images import in_order
from soft_vit.engine.data.datasets import part_of
from soft_vit.registry import DATASETS, register

HELD_OUT = 0.2
"""The share of the bags of each class that is held out where the CSV does not say which."""


@register(DATASETS)
class BagDataset(BaseDataset):
    """Bags: files of features, see `soft_vit.data.features`, that a CSV lists in the columns file, label and split.

    data_root: the CSV; files lie relative to it. split: the value of that column. Without the column, a share of
    the bags of each class is held out, and both "val" and "test".

    A sample has `inputs`, the features `[N, F]`, and `data_samples` with the label. The metainfo has `classes` and
    `in_features`, the width F of the first bag. Raises ValueError or FileNotFoundError for a list that does not fit,
    and for a file that is damaged or holds no instance.
    """

    def __init__(self, data_root: str | None = None, split: str = "train", **kwargs: Any) -> None:
        path = Path(data_root or "").expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"data_root must be a CSV of files and labels (--cfg-options), got {data_root}.")
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        if not rows or not {"file", "label"} <= rows[0].keys():
            raise ValueError(f"{path} must have the columns file and label, got {', '.join(rows[0]) if rows else ''}.")
        classes = in_order({row["label"] for row in rows})
        samples = [(str(path.parent / row["file"]), classes.index(row["label"])) for row in rows]
        told = [one for one, row in zip(samples, rows, strict=True) if row.get("split") == split]
        self._samples = told if "split" in rows[0] else part_of(samples, classes, HELD_OUT, split != "train")
        if not self._samples:
            raise ValueError(f"{path} must have bags of the split {split}, got none.")
        super().__init__(metainfo={"classes": tuple(classes), "in_features": _read(samples[0][0]).shape[1]}, **kwargs)

    def load_data_list(self) -> list[dict]:
        return [{"file": file, "gt_label": label} for file, label in self._samples]

    def prepare_data(self, idx: int) -> dict[str, Any]:
        info = self.get_data_info(idx)
        sample = DataSample(metainfo={"file": info["file"]}).set_gt_label(info["gt_label"])
        return {"inputs": _read(info["file"]), "data_samples": sample}


def _read(file: str) -> Tensor:
    """Return the features of a file. Raises ValueError for maps, and for no instance."""
    features = read_features(file)[0]["features"].float()
    if features.ndim != 2 or not len(features):
        raise ValueError(f"{file} must hold features [N, C] of an instance or more, got shape {tuple(features.shape)}.")
    return features
