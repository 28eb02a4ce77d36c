"""Windows cover every pixel, and their scores are averaged where they overlap."""

import pytest
import torch

from soft_vit.dense.segmentation.inference import slide, windows

# Size, crop, stride and the first pixels of the windows, rows and columns.
PLACES = [
    ((512, 683), (512, 512), (341, 341), [0], [0, 171]),
    ((100, 64), (64, 64), (48, 48), [0, 36], [0]),
    ((7, 9), (3, 4), (2, 3), [0, 2, 4], [0, 3, 5]),
    ((10, 10), (5, 5), (5, 5), [0, 5], [0, 5]),
    ((5, 20), (8, 8), (4, 4), [0], [0, 4, 8, 12]),
    ((3, 2), (8, 8), (4, 4), [0], [0]),
]


@pytest.mark.parametrize(("size", "crop", "stride", "rows", "columns"), PLACES)
def test_windows_stand_where_mmseg_puts_them(size, crop, stride, rows, columns):
    found = list(windows(size, crop, stride))
    assert [(y.start, x.start) for y, x in found] == [(row, column) for row in rows for column in columns]
    assert {(y.stop - y.start, x.stop - x.start) for y, x in found} == {(min(size[0], crop[0]), min(size[1], crop[1]))}


@pytest.mark.parametrize(("size", "crop", "stride", "rows", "columns"), PLACES)
def test_scores_are_means_over_windows(size, crop, stride, rows, columns):
    """A network whose scores depend on the whole window, against a loop over pixels."""
    image = torch.randn(1, 3, *size, dtype=torch.float64)

    def network(parts):
        return torch.cat([parts[:, :1] + parts.mean((1, 2, 3), keepdim=True), parts[:, 1:2] ** 2], dim=1)

    total, count = torch.zeros(1, 2, *size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for row in rows:
        for column in columns:
            place = (..., slice(row, row + crop[0]), slice(column, column + crop[1]))
            total[place] += network(image[place])
            count[place] += 1
    assert count.min() > 0
    torch.testing.assert_close(slide(network, image, crop, stride), total / count, rtol=1e-12, atol=1e-12)
