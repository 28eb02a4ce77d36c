"""The generated shapes: one image per (seed, index), which shows what it says."""

import numpy as np
import pytest

from soft_vit.data import SPLITS, ShapeImages, draw_shape, draw_tiles
from soft_vit.data.demo.shapes import CELLS, COLORS, NUM_TILES


@pytest.mark.parametrize("size", [16, 33, 64, (32, 100), (101, 40)])
def test_sample_is_consistent(size):
    height, width = (size, size) if isinstance(size, int) else size
    for index in range(20):
        sample = draw_shape(2, index, size)
        assert sample.image.shape == (height, width, 3)
        assert sample.image.dtype == np.uint8
        assert sample.label == index % 10
        x0, y0, x1, y1 = sample.box
        assert 0 <= x0 < x1 <= width
        assert 0 <= y0 < y1 <= height
        assert 0.01 < (x1 - x0) * (y1 - y0) / (width * height) < 0.9


def test_splits_and_seeds_share_no_image():
    samples = [sample for split in SPLITS for seed in (0, 1) for sample in ShapeImages(20, split, seed, 32)]
    assert len({sample.image.tobytes() for sample in samples}) == 20 * 3 * 2


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"\(64, 8\)"):
        draw_shape(0, 0, (64, 8))
    with pytest.raises(ValueError, match="validation"):
        ShapeImages(10, "validation")


@pytest.mark.parametrize("size", [16, 33, 64, (61, 100)])
def test_tiles_answer_the_question(size):
    """Read off the pixels: the tile with the cue's left colour has the label's right colour."""
    height, width = (size, size) if isinstance(size, int) else size
    palette = 255 * np.array([*COLORS.values(), (1, 1, 1)])
    for index in range(24):
        sample = draw_tiles(2, index, size)
        assert sample.image.shape == (height, width, 3)
        tiles = {}
        for row, column in np.ndindex(CELLS, CELLS):
            y, x = row * height // CELLS, column * width // CELLS
            stop = (column + 1) * width // CELLS
            halves = [
                sample.image[y : (row + 1) * height // CELLS, a:b].reshape(-1, 3)
                for a, b in ((x, (x + stop) // 2), ((x + stop) // 2, stop))
            ]
            distances = [np.abs(half.mean(0) - palette).max(1) for half in halves]
            # Noise and clipping change a mean by a few per cent; the clutter is duller than that.
            if all(distance.min() < 16 for distance in distances):
                tiles[row, column] = [int(distance.argmin()) for distance in distances]
        assert len(tiles) == NUM_TILES + 1
        (cue,) = (left for left, right in tiles.values() if right == len(COLORS))
        ((place, answer),) = ((place, right) for place, (left, right) in tiles.items() if left == cue and right < 6)
        assert sample.label == answer == index % len(COLORS)
        x0, y0, x1, y1 = (int(side) for side in sample.box)
        assert (place[0] * height // CELLS, place[1] * width // CELLS) == (y0, x0)
        assert np.abs(sample.image[y0:y1, x0 : (x0 + x1) // 2].reshape(-1, 3).mean(0) - palette[cue]).max() < 16
