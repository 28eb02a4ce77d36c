"""Pictures with a class for each pixel: read, transformed and put into batches."""

import shutil

import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData
from PIL import Image
from torch.nn import functional as F

from soft_vit.data.demo.trees import make_tree
from soft_vit.data.label_maps import IGNORED
from soft_vit.dense.segmentation import LabelMapTree, transforms
from soft_vit.dense.segmentation import preprocessor as module
from soft_vit.dense.segmentation.preprocessor import RandomWindows, SegmentationPreprocessor
from soft_vit.engine.hooks.checks import match_classes

# A tree through MMEngine's loader: samples, and what happens to pairs that cannot be read.


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


def test_masks_that_lack_a_class_are_numbered_as_the_model_does(tmp_path):
    Image.new("RGB", (2, 1)).save(tmp_path / "a.jpg")
    Image.frombytes("L", (2, 1), bytes([7, 3])).save(tmp_path / "a.png")
    dataset = LabelMapTree(str(tmp_path), ann_dir=".", pipeline=OPTIONS["pipeline"])
    match_classes(dataset, names := ("value 3", "value 5", "value 7"), "the model")
    assert dataset[0]["data_samples"].gt_sem_seg.data.tolist() == [[[2, 0]]]
    assert dataset.metainfo["classes"] == names


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


# Augmentation moves labels with their image, covers the range of its options, and follows the seed.


def picture(height, width):
    """Return an image whose first channel encodes the label of each pixel, in blocks of 16 x 16."""
    blocks = torch.randint(0, 20, (-(-height // 16), -(-width // 16)), dtype=torch.uint8)
    labels = blocks.repeat_interleave(16, 0).repeat_interleave(16, 1)[:height, :width]
    image = torch.stack([labels * 10, torch.full_like(labels, 7), labels])
    return {"img": image, "gt_seg_map": labels.contiguous(), "ori_shape": (height, width), "sample_idx": 3}


# Sizes as mmcv's imrescale gives them for the scale (2048, 512).
RESIZED = [((512, 683), (512, 683)), ((256, 256), (512, 512)), ((300, 2000), (307, 2048)), ((1000, 500), (1024, 512))]


@pytest.mark.parametrize(("size", "expected"), RESIZED)
def test_an_image_fits_into_the_scale(size, expected):
    assert transforms.resize_within(size, (2048, 512)) == expected
    assert transforms.resize_within(size[::-1], (512, 2048)) == expected[::-1]


ROUNDED_UP = [((512, 683), (512, 704)), ((480, 640), (512, 704)), ((1000, 500), (1024, 512))]


@pytest.mark.parametrize(("size", "expected"), ROUNDED_UP)
def test_sides_are_rounded_up_to_multiples(size, expected):
    """As the authors of EfficientViT resize ADE20K: the longer side is `ceil(long / short * 512 / 32) * 32`."""
    given = picture(*size)
    found = transforms.SegResize((512, 512), max_ratio=100, divisor=32, interpolation="bicubic").transform(given)
    assert found["img"].shape[1:] == expected
    assert found["gt_seg_map"] is given["gt_seg_map"]


@pytest.mark.parametrize("factor", [0.5, 1.7])
def test_labels_are_resized_with_their_image_except_in_a_test(factor):
    given = picture(64, 96)
    assert transforms.SegResize((64, 20)).transform(given)["img"].shape == (3, 20, 30)
    assert transforms.SegResize((64, 20)).transform(given)["gt_seg_map"] is given["gt_seg_map"]
    found = transforms.SegRandomResize((96, 64), (factor, factor)).transform(given)
    assert found["img"].shape[-2:] == found["gt_seg_map"].shape == (round(64 * factor), round(96 * factor))
    # Away from the edges of a block, the image still encodes the label.
    labels = found["gt_seg_map"].float()[None, None]
    inside = -F.max_pool2d(-labels, 5, 1, 2) == F.max_pool2d(labels, 5, 1, 2)
    assert inside.float().mean() > 0.1
    assert torch.equal((found["img"][0] / 10).round()[inside[0, 0]], found["gt_seg_map"].float()[inside[0, 0]])


@pytest.mark.parametrize("size", [(64, 96), (30, 96), (64, 20), (10, 11)])
def test_a_crop_is_a_window_of_both(size):
    given = picture(*size)
    corners = set()
    for _ in range(50):
        found = transforms.SegRandomCrop((32, 48)).transform(given)
        assert found["img"].shape[-2:] == found["gt_seg_map"].shape == (min(size[0], 32), min(size[1], 48))
        assert torch.equal(found["img"][2], found["gt_seg_map"])
        corners.add(tuple(found["img"][:, 0, 0].tolist()))
    assert (len(corners) > 1) == (size[0] > 32 or size[1] > 48)


def test_a_flip_mirrors_both():
    given = picture(24, 40)
    found = transforms.SegRandomFlip(1.0).transform(given)
    assert torch.equal(found["gt_seg_map"], given["gt_seg_map"].flip(1))
    assert torch.equal(found["img"], given["img"].flip(2))
    assert torch.equal(transforms.SegRandomFlip(0.0).transform(given)["img"], given["img"])


def test_a_packed_crop_does_not_keep_its_image():
    packed = transforms.PackSegmentation().transform(transforms.SegRandomCrop(16).transform(picture(64, 96)))
    sample = packed["data_samples"]
    assert packed["inputs"].untyped_storage().nbytes() == 3 * 16 * 16
    assert sample.gt_sem_seg.data.untyped_storage().nbytes() == 16 * 16
    assert sample.ori_shape == (64, 96)
    assert sample.sample_idx == 3


# Batches of images and labels: padded, normalised, cut into windows.


@pytest.mark.parametrize("size", [None, (64, 96)])
def test_a_batch_is_padded_with_the_mean_and_no_class(size):
    preprocessor = SegmentationPreprocessor([10.0, 20.0, 30.0], [2.0, 4.0, 8.0], size=size)
    images = [torch.full((3, 40, 90), 14, dtype=torch.uint8), torch.full((3, 64, 33), 14 / 255)]
    labels = [torch.randint(0, 11, (1, *image.shape[1:]), dtype=torch.uint8) for image in images]
    samples = [BaseDataElement(gt_sem_seg=PixelData(data=given.clone())) for given in labels]
    batch = preprocessor({"inputs": images, "data_samples": samples}, training=True)
    # Whoever prepares the batch again finds it as it was.
    assert (images[1] == torch.tensor(14 / 255)).all()
    expected = (64, 90) if size is None else size
    assert batch["inputs"].shape == (2, 3, *expected)
    assert torch.equal(batch["inputs"][0, :, 0, 0], torch.tensor([2.0, -1.5, -2.0]))
    assert not batch["inputs"][0, :, 40:].any()
    for sample, given in zip(batch["data_samples"], labels, strict=True):
        padded = sample.gt_sem_seg.data
        assert padded.shape == (1, *expected)
        assert torch.equal(padded[:, : given.shape[1], : given.shape[2]], given)
        assert (padded != 255).sum() == (given != 255).sum()


def test_training_sees_windows_and_a_test_whole_images():
    windows = {"size": 16, "per_image": 3, "scales": (0.5, 1.0), "angle": 30}
    preprocessor = SegmentationPreprocessor([0.0] * 3, [1.0] * 3, windows=windows)
    # Each image has a class and a colour of its own.
    values = [torch.full((1, 64, 96), value, dtype=torch.uint8) for value in (3, 7)]
    samples = [BaseDataElement(metainfo={"sample_idx": int(v[0, 0, 0])}, gt_sem_seg=PixelData(data=v)) for v in values]
    data = {"inputs": [value.repeat(3, 1, 1) for value in values], "data_samples": samples}
    assert preprocessor(data)["inputs"][0].shape == (3, 64, 96)
    found = preprocessor(data, training=True)
    assert found["inputs"].shape == (6, 3, 16, 16)
    assert [sample.sample_idx for sample in found["data_samples"]] == [3, 3, 3, 7, 7, 7]
    for image, sample in zip(found["inputs"], found["data_samples"], strict=True):
        assert (sample.gt_sem_seg.data == sample.sample_idx).all()
        torch.testing.assert_close(image, torch.full_like(image, sample.sample_idx))


ANY = {"scales": (0.4, 0.8), "angle": 180.0, "stretch": 1.3}


def scene(height: int = 63, width: int = 97) -> tuple[torch.Tensor, torch.Tensor]:
    """Two images with a large class 0 and a small class 3, whose pixels have colours of their own."""
    labels = torch.zeros(2, height, width, dtype=torch.uint8)
    labels[:, 10:30, 20:52] = 3
    labels[:, 40:, :9] = IGNORED
    images = torch.zeros(2, 3, height, width)
    images[:, 0], images[:, 1] = (labels == 3).float(), (labels == IGNORED).float()
    return images, labels


@pytest.mark.parametrize("options", [{}, ANY], ids=["plain", "any"])
def test_labels_lie_where_the_image_has_them(options):
    torch.manual_seed(0)
    windows, labels = RandomWindows(24, per_image=16, **options)(*scene())
    assert windows.shape == (32, 3, 24, 24)
    assert labels.shape == (32, 24, 24)
    assert labels.dtype == torch.uint8
    assert {0, 3, IGNORED} >= set(labels.unique().tolist())
    # Of four pixels between which a colour is interpolated, the nearest, whose label it gets, has at least a quarter.
    for channel, value in ((0, 3), (1, IGNORED)):
        assert (labels[windows[:, channel] > 0.751] == value).all()
        assert (labels[windows[:, channel] < 0.249] != value).all()


def test_a_small_class_is_seen_as_often_as_a_large_one(monkeypatch):
    monkeypatch.setattr(module, "SPREAD", 0.0)
    torch.manual_seed(0)
    images, labels = scene()
    labels[:] = 3 * (labels == 3)
    labels[:, 12:, :] = 0
    _, seen = RandomWindows(3, per_image=200)(images, labels)
    share = (seen[:, 1, 1] == 3).float().mean().item()
    # 400 draws with probability 1 / 2; seven standard deviations.
    assert abs(share - 0.5) < 7 * 0.5 / 20


@pytest.mark.parametrize("size", [8, 200])
def test_unlabelled_images_and_windows_larger_than_the_image(size):
    images, labels = scene()
    windows, seen = RandomWindows(size, **ANY)(images, torch.full_like(labels, IGNORED))
    assert windows.isfinite().all()
    assert (seen == IGNORED).all()
