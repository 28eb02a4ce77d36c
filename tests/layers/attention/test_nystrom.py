import pytest
import torch
import torch.nn.functional as F

from soft_vit.layers.attention.landmarks import landmark_tokens
from soft_vit.layers.attention.nystrom import NystromAttention
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


def test_windows_of_one_token_give_full_attention() -> None:
    torch.manual_seed(0)
    attn = NystromAttention(24, 3, feat_size=(7, 9), max_landmarks=None, local_kernel=0, inverse="exact").double()
    x = torch.randn(2, 63, 24, dtype=torch.float64)
    with torch.no_grad():
        # Keys that are the queries, far apart: a softmax matrix that has an inverse.
        attn.qkv.weight[24:48] = attn.qkv.weight[:24] = 3 * torch.nn.init.orthogonal_(torch.empty(24, 24))
        attn.qkv.bias.zero_()
    q, k, v = attn.qkv(x).view(2, 63, 3, 3, 8).permute(2, 0, 3, 1, 4)
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 63, 24)
    torch.testing.assert_close(attn(x, (7, 9)), attn.proj(expected), rtol=0, atol=1e-8)
