"""A small generated tree in ADE20K's layout, and segmentors that fit it."""

import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense.segmentation import TimmSegmentor

DECODERS = {"upernet": {"channels": 16}, "fpn": {"channels": 32, "pyramid_channels": 16}}


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """8 training and 5 test images of 64 x 80 pixels, 11 classes."""
    root = tmp_path_factory.mktemp("shapes") / "ade"
    make_tree(root, "ade", train=8, val=5, size=(64, 80), seed=3)
    return root


@pytest.fixture
def segmentor():
    """A function that makes a small segmentor of eleven classes; options of its backbone and of itself."""

    def make(kind="upernet", backbone=None, **options):
        backbone = {"model_name": "soft_pico", "max_bottleneck": (7, 7), **(backbone or {})}
        options = {"auxiliary": {"index": 2, "channels": 16}, **options}
        return TimmSegmentor(backbone, {"kind": kind, **DECODERS[kind]}, 11, **options)

    return make


@pytest.fixture
def labelled():
    """A function that makes a sample of H x W pixels of eleven classes."""

    def make(*shape):
        labels = torch.randint(0, 11, (1, *shape), dtype=torch.uint8)
        return BaseDataElement(gt_sem_seg=PixelData(data=labels))

    return make
