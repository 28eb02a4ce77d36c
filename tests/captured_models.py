"""Small models, and images, for what captures a model as a graph."""

import pytest
import timm
import torch

from soft_vit.models import PyramidViT

CASES = {
    "soft": dict(model_name="soft_pico"),
    "soft_norm": dict(model_name="soft_norm_pico"),
    "cholesky": dict(model_name="soft_pico", inverse="cholesky"),
    "soft stage 4, average sampling": dict(model_name="soft_norm_pico", stage4="soft", sampling="avg"),
    "capped bottleneck": dict(model_name="soft_pico", max_bottleneck=(1, 2)),
    "random sampling": dict(model_name="soft_pico", sampling="random"),
}
SIZE = (64, 80)

cases = pytest.mark.parametrize("arguments", CASES.values(), ids=CASES.keys())


def create(arguments: dict) -> PyramidViT:
    torch.manual_seed(0)
    return timm.create_model(**arguments, num_classes=7, img_size=48).eval()


def images(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, *SIZE, generator=torch.Generator().manual_seed(2))
