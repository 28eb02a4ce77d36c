"""A small generated COCO tree, and detectors that fit it."""

import pytest

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense.detection import TorchvisionMaskRCNN, TorchvisionRetinaNet

SMALL = {
    "TorchvisionRetinaNet": (TorchvisionRetinaNet, {"pyramid_channels": 32, "head_convs": 1}),
    "TorchvisionMaskRCNN": (
        TorchvisionMaskRCNN,
        {"pyramid_channels": 32, "box_head_dim": 64, "mask_head_dims": (32,), "box_batch_size_per_image": 32},
    ),
}


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """annotations, train2017 (16 images), val2017 (8 images) of 96 x 112 pixels."""
    root = tmp_path_factory.mktemp("shapes") / "coco"
    make_tree(root, "coco", train=16, val=8, size=(96, 112), seed=3)
    return root


@pytest.fixture(params=SMALL)
def small_detector(request):
    """A function that makes a small detector of each kind for ten classes; options of it and of its backbone."""

    def make(backbone=None, **options):
        kind, small = SMALL[request.param]
        backbone = {"model_name": "soft_pico", "max_bottleneck": (7, 7), **(backbone or {})}
        return kind(backbone, 10, **{"min_size": 96, "max_size": 112, **small, **options})

    return make
