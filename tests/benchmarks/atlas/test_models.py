"""Tables of models in timm's columns: published sizes, what is resumed, and models that fail."""

import pytest
import torch
from torch import nn

from benchmarks.atlas.models import Activations, sizes_of


@pytest.mark.parametrize(
    ("name", "size", "published"),
    [
        # results/benchmark-infer-fp32-nchw-pt240-cpu-i7_12700h-dynamo.csv of huggingface/pytorch-image-models.
        ("deit_tiny_patch16_224", 224, (5.72, 1.26, 5.97)),
        ("pvt_v2_b0", 224, (3.67, 0.57, 7.99)),
        ("test_vit", 160, (0.37, 0.04, 0.48)),
    ],
)
def test_sizes_are_those_that_timm_publishes(name, size, published):
    assert sizes_of(name, (size, size)) == pytest.approx(published, abs=0.0101)


def test_activations_of_one_layer_each():
    x = torch.randn(2, 3, 8, 8)
    with Activations() as activations, torch.no_grad():
        y = nn.Conv2d(3, 4, 3, padding=1)(x)  # 2 * 4 * 64
        nn.Linear(8, 5)(y)  # 2 * 4 * 8 * 5
        # Two heads of 7 tokens: scores 7 * 6, results 7 * 3.
        nn.functional.scaled_dot_product_attention(*(torch.randn(1, 2, *s) for s in ((7, 3), (6, 3), (6, 3))))
    assert activations.count == 512 + 320 + 2 * (42 + 21)
