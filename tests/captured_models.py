"""Small models, and images, for what captures a model as a graph."""

import pytest
import timm
import torch

from soft_vit.models import PyramidViT

# Few iterations: a graph has a node of each.
CASES: dict[str, dict] = {
    "soft": dict(model_name="soft_pico", newton_iters=3),
    "soft_norm": dict(model_name="soft_norm_pico", newton_iters=3),
    "cholesky": dict(model_name="soft_pico", inverse="cholesky"),
    "soft stage 4, average sampling": dict(model_name="soft_norm_pico", stage4="soft", sampling="avg", newton_iters=3),
    "capped bottleneck": dict(model_name="soft_pico", max_bottleneck=(1, 2), newton_iters=3),
    "random sampling": dict(model_name="soft_pico", sampling="random", newton_iters=3),
}
# Options of the pyramid, whatever its attention.
OPTIONS = {
    "fused stages": dict(fuse_stages=True),
    "reversible": dict(reversible=True),
    "all": dict(global_pool="attn", fuse_stages=True, reversible=True, mlp_chunks=3, attention="local"),
}
CASES |= {name: dict(model_name="soft_pico", **options) for name, options in OPTIONS.items()}
SIZE = (64, 80)
# For what is slow to capture.
TWO_STAGES = dict(depths=(1, 1), embed_dims=(32, 64), num_heads=(1, 2), sr_ratios=(8, 4))

cases = pytest.mark.parametrize("arguments", CASES.values(), ids=CASES.keys())


def create(arguments: dict, **kwargs) -> PyramidViT:
    torch.manual_seed(0)
    return timm.create_model(
        **{"model_name": "soft_pico", "depths": (1, 2, 1, 1), "num_classes": 7, "img_size": 48, **arguments, **kwargs}
    ).eval()


def images(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, *SIZE, generator=torch.Generator().manual_seed(2))
