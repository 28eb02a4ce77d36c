"""Batches of images and labels: padded, normalised, cut into windows."""

import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData

from soft_vit.data.label_maps import IGNORED
from soft_vit.dense.segmentation import preprocessor as module
from soft_vit.dense.segmentation.preprocessor import RandomWindows, SegmentationPreprocessor


@pytest.mark.parametrize("size", [None, (64, 96)])
def test_a_batch_is_padded_with_the_mean_and_no_class(size):
    preprocessor = SegmentationPreprocessor([10.0, 20.0, 30.0], [2.0, 4.0, 8.0], size=size)
    images = [torch.full((3, 40, 90), 14, dtype=torch.uint8), torch.full((3, 64, 33), 14.0)]
    labels = [torch.randint(0, 11, (1, *image.shape[1:]), dtype=torch.uint8) for image in images]
    samples = [BaseDataElement(gt_sem_seg=PixelData(data=given.clone())) for given in labels]
    batch = preprocessor({"inputs": images, "data_samples": samples}, training=True)
    # Whoever prepares the batch again finds it as it was.
    assert (images[1] == 14).all()
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


@pytest.mark.parametrize("options", [{}, ANY, {**ANY, "mirror": False}], ids=["plain", "any", "unmirrored"])
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
