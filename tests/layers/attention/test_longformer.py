"""Where Longformer's global tokens lie, and what they reach; its formula is in attention_cases.py."""

import pytest
import torch

from soft_vit.layers.attention.longformer import global_positions


@pytest.mark.parametrize(
    ("feat_size", "global_grid", "positions"),
    [
        ((7, 9), (2, 2), [1 * 9 + 2, 1 * 9 + 6, 5 * 9 + 2, 5 * 9 + 6]),
        ((15, 13), (1, 1), [7 * 13 + 6]),
        ((2, 40), (3, 2), [10, 30, 50, 70]),
        ((1, 1), (2, 2), [0]),
    ],
)
def test_global_tokens_are_the_centres_of_a_grid(feat_size, global_grid, positions: list[int]) -> None:
    assert sorted(global_positions(feat_size, global_grid, torch.device("cpu")).tolist()) == positions
