import pytest
import torch

from soft_vit.layers.attention.landmarks import landmark_tokens
from soft_vit.ops.layout import Layout


def test_segment_landmarks_are_means_of_runs() -> None:
    x = torch.randn(2, 3, 48, 5)
    expected = x.view(2, 3, 12, 4, 5).mean(3)
    torch.testing.assert_close(landmark_tokens(x, Layout((6, 8)), 2, None, "segment")[0], expected)


@pytest.mark.parametrize("landmarks", ["grid", "segment"])
@pytest.mark.parametrize(
    ("grid", "sr_ratio", "limit", "count"),
    [((56, 56), 8, (7, 7), 49), ((7, 9), 2, None, 12), ((100, 168), 8, (7, 7), 49), ((3, 1), 8, (7, 7), 1)],
)
def test_number_of_landmarks(landmarks, grid, sr_ratio, limit, count: int) -> None:
    x = torch.randn(1, 1, grid[0] * grid[1], 2)
    assert landmark_tokens(x, Layout(grid), sr_ratio, limit, landmarks)[0].shape == (1, 1, count, 2)
