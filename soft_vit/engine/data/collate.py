"""Batches of images and labels that cross from a worker cheaply."""

from typing import Any

import torch
from mmengine.registry import FUNCTIONS
from mmpretrain.structures import DataSample
from torch import Tensor
from torch.utils.data import default_collate

__all__ = ["collate_labels", "samples_of_labels"]


@FUNCTIONS.register_module()
def collate_labels(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Stack packed samples to `inputs` [B, ...] and `labels` [B]; nothing else of a sample reaches the model.

    A worker hands each tensor of a batch over by a file descriptor of its own; a label is one in every DataSample.
    """
    # PyTorch's own stacking writes straight into memory that is shared with the main process.
    inputs = default_collate([sample["inputs"] for sample in batch])
    return {"inputs": inputs, "labels": torch.cat([sample["data_samples"].gt_label for sample in batch])}


def samples_of_labels(labels: Tensor) -> list[DataSample]:
    """The DataSample of each label [B], on its device."""
    samples = []
    for label in labels.split(1):
        sample = DataSample()
        sample.set_field(label, "gt_label", dtype=Tensor)
        samples.append(sample)
    return samples
