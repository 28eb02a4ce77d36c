"""The picture of a batch: its pixels and its labels."""

import numpy as np
import pytest
import torch
from mmpretrain.structures import DataSample

from soft_vit.data import CLASSES
from soft_vit.engine.data.batch_picture import batch_grid, label_text


@pytest.mark.parametrize(
    ("score", "names", "text"),
    [
        (None, CLASSES, "star"),
        (None, None, "3"),
        ([0.01, 0.01, 0.01, 0.97], CLASSES, "star"),
        ([0.31, 0.0, 0.0, 0.69], CLASSES, "star 0.69 + circle 0.31"),
        ([0.2, 0.3, 0.5, 0.0], None, "2 0.50 + 1 0.30"),
    ],
)
def test_label(score, names, text):
    sample = DataSample().set_gt_label(3)
    if score is not None:
        sample.set_gt_score(torch.tensor(score))
    assert label_text(sample, names) == text


def test_grid_shows_every_pixel():
    images = np.random.default_rng(0).integers(0, 256, (5, 40, 30, 3), dtype=np.uint8)
    grid = batch_grid(images, ["a", "b", "c", "d", "a label much longer than its image is wide"])
    # 30 pixels four times are the first multiple above 112; three columns, two rows.
    assert grid.shape == (2 * (160 + 2 + 14), 3 * (120 + 2), 3)
    assert (grid[1:161:4, 1:121:4] == images[0]).all()
    assert (grid[177:337, 123:243][3::4, 3::4] == images[4]).all()
    assert (grid[162:175, 1:121] < 128).any()
