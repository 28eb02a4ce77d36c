"""A tree through MMEngine's loader: samples, and what happens to pairs that cannot be read."""

import shutil

import pytest
import torch
from mmengine.dataset import pseudo_collate
from PIL import Image
from torch.utils.data import DataLoader

from soft_vit.dense.segmentation import LabelMapTree

OPTIONS = {"reduce_zero_label": True, "pipeline": [{"type": "PackSegmentation"}]}


@pytest.fixture
def copied(tree, tmp_path):
    """A tree that a test may damage."""
    return shutil.copytree(tree, tmp_path / "ade")


def cut(path):
    path.write_bytes(path.read_bytes()[:60])


def save(path, size, value):
    Image.new("L", size, value).save(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_hold_image_and_labels(tree, workers):
    dataset = LabelMapTree(str(tree), "validation", test_mode=True, **OPTIONS)
    assert dataset.metainfo["classes"][:3] == ("background", "circle", "triangle")
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=pseudo_collate)
    batches = list(loader)
    assert [len(batch["inputs"]) for batch in batches] == [2, 2, 1]
    sample = batches[1]["data_samples"][0]
    assert batches[1]["inputs"][0].shape == (3, 64, 80)
    assert batches[1]["inputs"][0].dtype == torch.uint8
    assert sample.gt_sem_seg.data.shape == (1, 64, 80)
    assert set(sample.gt_sem_seg.data.unique().tolist()) <= {*range(11), 255}
    assert (sample.img_path, sample.ori_shape, sample.sample_idx) == ("00000003.jpg", (64, 80), 2)


def test_in_training_the_next_image_takes_the_place_of_an_unreadable_one(copied):
    cut(copied / "images/training/00000002.jpg")
    dataset = LabelMapTree(str(copied), **OPTIONS)
    assert dataset[1]["data_samples"].img_path == "00000003.jpg"
    assert dataset.bad_images() == [1]
    assert dataset.why_bad(1).startswith("00000002.jpg: ")


def test_in_a_test_a_black_image_does_and_its_labels_count(copied):
    dataset = LabelMapTree(str(copied), "validation", test_mode=True, **OPTIONS)
    sound = dataset[1]
    cut(copied / "images/validation/00000002.jpg")
    sample = dataset[1]
    assert sound["inputs"].any()
    assert not sample["inputs"].any()
    assert torch.equal(sample["data_samples"].gt_sem_seg.data, sound["data_samples"].gt_sem_seg.data)


# What is damaged, in which split, and what the error names; the second pair is read.
REFUSED = [
    ("validation", lambda root: cut(root / "annotations/validation/00000002.png"), "00000002.png"),
    ("validation", lambda root: save(root / "annotations/validation/00000002.png", (80, 64), 200), "got 200"),
    ("validation", lambda root: save(root / "annotations/validation/00000002.png", (40, 32), 1), "got 32 x 40"),
    ("training", lambda root: (root / "annotations/training/00000002.png").unlink(), "1 of 8 are missing"),
    ("training", lambda root: (root / "classes.txt").write_text("background\n"), "below 2 or 255"),
    ("training", lambda root: [cut(path) for path in (root / "images/training").iterdir()], "None of the 8 images"),
]


@pytest.mark.parametrize(("split", "damage", "sentence"), REFUSED)
def test_a_tree_that_does_not_fit_is_one_clear_error(copied, split, damage, sentence):
    damage(copied)
    with pytest.raises(ValueError, match=sentence):
        LabelMapTree(str(copied), split, test_mode=split == "validation", **OPTIONS)[1]
