"""Batches of images and labels: padded, normalised, cut into windows."""

import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData

from soft_vit.dense.segmentation import SegmentationPreprocessor
from soft_vit.engine.errors import UserError


def labelled(*shape):
    sample = BaseDataElement()
    sample.gt_sem_seg = PixelData(data=torch.randint(0, 11, (1, *shape), dtype=torch.uint8))
    return sample


@pytest.mark.parametrize("size", [None, (64, 96)])
def test_a_batch_is_padded_with_the_mean_and_no_class(size):
    preprocessor = SegmentationPreprocessor([10.0, 20.0, 30.0], [2.0, 4.0, 8.0], size=size)
    images = [torch.full((3, 40, 90), 14, dtype=torch.uint8), torch.full((3, 64, 33), 14, dtype=torch.uint8)]
    samples = [labelled(40, 90), labelled(64, 33)]
    labels = [sample.gt_sem_seg.data.clone() for sample in samples]
    batch = preprocessor({"inputs": images, "data_samples": samples}, training=True)
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
    labels = torch.randint(0, 5, (1, 4, 6), dtype=torch.uint8).repeat_interleave(16, 1).repeat_interleave(16, 2)
    samples = [BaseDataElement(metainfo={"sample_idx": i}, gt_sem_seg=PixelData(data=labels.clone())) for i in (0, 1)]
    data = {"inputs": [labels.repeat(3, 1, 1) for _ in samples], "data_samples": samples}
    found = preprocessor(data, training=True)
    assert found["inputs"].shape == (6, 3, 16, 16)
    assert [sample.sample_idx for sample in found["data_samples"]] == [0, 0, 0, 1, 1, 1]
    for image, sample in zip(found["inputs"], found["data_samples"], strict=True):
        assert sample.gt_sem_seg.data.shape == (1, 16, 16)
        # The image shows the labels: they agree away from the edges of the blocks.
        assert (image[0].round() == sample.gt_sem_seg.data[0]).float().mean() > 0.6
    whole = preprocessor({"inputs": [labels.repeat(3, 1, 1)], "data_samples": None}, training=False)
    assert whole["inputs"][0].shape == (3, 64, 96)
    for wrong, message in (({"size": 0}, "windows.size is 0"), ({"sides": 4}, "see RandomWindows")):
        with pytest.raises(UserError, match=message):
            SegmentationPreprocessor([0.0] * 3, [1.0] * 3, windows=wrong)
