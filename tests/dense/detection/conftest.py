"""A small generated COCO tree."""

import pytest

from soft_vit.data.demo.trees import make_tree


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """annotations, train2017 (16 images), val2017 (8 images) of 96 x 112 pixels."""
    root = tmp_path_factory.mktemp("shapes") / "coco"
    make_tree(root, "coco", train=16, val=8, size=(96, 112), seed=3)
    return root
