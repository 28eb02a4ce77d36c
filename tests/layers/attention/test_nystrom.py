import pytest
import torch

from soft_vit.layers.attention.landmarks import landmark_tokens
from soft_vit.ops.layout import Layout


@pytest.mark.parametrize("landmarks", ["grid", "segment"])
@pytest.mark.parametrize(
    ("grid", "sr_ratio", "limit", "count"),
    [((56, 56), 8, (7, 7), 49), ((7, 9), 2, None, 12), ((100, 168), 8, (7, 7), 49), ((3, 1), 8, (7, 7), 1)],
)
def test_number_of_landmarks(landmarks, grid, sr_ratio, limit, count: int) -> None:
    x = torch.randn(1, 1, grid[0] * grid[1], 2)
    assert landmark_tokens(x, Layout(grid), sr_ratio, limit, landmarks)[0].shape == (1, 1, count, 2)
