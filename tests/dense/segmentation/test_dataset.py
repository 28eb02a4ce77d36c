"""A tree through MMEngine's loader: samples, and what happens to pairs that cannot be read."""

import shutil

import pytest
import torch
from PIL import Image

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense.segmentation import LabelMapTree

MAP = "annotations/validation/00000002.png"
OPTIONS = {"reduce_zero_label": True, "pipeline": [{"type": "PackSegmentation"}]}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """8 training and 5 test images of 64 x 80 pixels, 11 classes."""
    root = tmp_path_factory.mktemp("shapes") / "ade"
    make_tree(root, "ade", train=8, val=5, size=(64, 80), seed=3)
    return root


@pytest.fixture
def copied(tree, tmp_path):
    """A tree that a test may damage."""
    return shutil.copytree(tree, tmp_path / "ade")


def cut(path):
    path.write_bytes(path.read_bytes()[:60])


def test_a_sample_holds_image_and_labels(tree):
    dataset = LabelMapTree(str(tree), "validation", test_mode=True, **OPTIONS)
    assert len(dataset) == 5
    assert dataset.metainfo["classes"][:3] == ("background", "circle", "triangle")
    inputs, sample = dataset[2]["inputs"], dataset[2]["data_samples"]
    assert (inputs.shape, inputs.dtype) == ((3, 64, 80), torch.uint8)
    assert sample.gt_sem_seg.data.shape == (1, 64, 80)
    assert set(sample.gt_sem_seg.data.unique().tolist()) <= {*range(11), 255}
    assert (sample.img_path, sample.ori_shape, sample.sample_idx) == ("00000003.jpg", (64, 80), 2)


def test_an_unreadable_image_is_skipped_in_training_and_black_in_a_test(copied):
    """In a test its labels count."""
    test = LabelMapTree(str(copied), "validation", test_mode=True, **OPTIONS)
    sound = test[1]
    for split in ("training", "validation"):
        cut(copied / f"images/{split}/00000002.jpg")
    black, train = test[1], LabelMapTree(str(copied), **OPTIONS)
    assert sound["inputs"].any()
    assert not black["inputs"].any()
    assert torch.equal(black["data_samples"].gt_sem_seg.data, sound["data_samples"].gt_sem_seg.data)
    assert train[1]["data_samples"].img_path == "00000003.jpg"
    assert train.bad_images() == [1]
    assert train.why_bad(1).startswith("00000002.jpg: ")


# What is damaged, in which split, and what the error names; the second pair is read.
REFUSED = [
    ("validation", lambda root: cut(root / MAP), "00000002.png"),
    ("validation", lambda root: Image.new("L", (40, 32), 1).save(root / MAP), "got 32 x 40"),
    ("training", lambda root: [cut(path) for path in (root / "images/training").iterdir()], "None of the 8 images"),
]


@pytest.mark.parametrize(("split", "damage", "sentence"), REFUSED)
def test_a_tree_that_does_not_fit_is_one_clear_error(copied, split, damage, sentence):
    damage(copied)
    with pytest.raises(ValueError, match=sentence):
        LabelMapTree(str(copied), split, test_mode=split == "validation", **OPTIONS)[1]
