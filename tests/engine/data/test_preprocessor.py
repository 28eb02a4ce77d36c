"""Batches on their device: normalised, erased and mixed as timm does it."""

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.runner import set_random_seed
from mmpretrain.structures import DataSample
from timm.data import Mixup
from timm.data.random_erasing import RandomErasing

import soft_vit.engine  # noqa: F401  registers the preprocessor
from soft_vit.engine.data.preprocessor import collate_labels

MEAN, STD, CLASSES = [100.0, 110.0, 120.0], [50.0, 60.0, 70.0], 11


def batch(size: int = 4, stacked: bool = True) -> dict:
    images = torch.randint(0, 256, (size, 3, 17, 21), dtype=torch.uint8)
    samples = [DataSample().set_gt_label(i % CLASSES) for i in range(size)]
    return {"inputs": images if stacked else list(images), "data_samples": samples}


def build(**kwargs):
    return MODELS.build({"type": "RecipeDataPreprocessor", "mean": MEAN, "std": STD, "num_classes": CLASSES, **kwargs})


def normalised(images: torch.Tensor) -> torch.Tensor:
    return (images.float() - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


@pytest.mark.parametrize(
    ("stacked", "training", "options"),
    [(True, False, {}), (True, True, {}), (False, False, dict(reprob=1.0, mixup=0.8, cutmix=1.0, smoothing=0.1))],
)
def test_normalising(stacked, training, options):
    """An evaluation augments nothing."""
    data = batch(stacked=stacked)
    if not training:
        # Floats, which stay as they are for whoever prepares them again.
        data["inputs"] = data["inputs"].float() if stacked else [image.float() for image in data["inputs"]]
    images = torch.stack(list(data["inputs"]))
    out = build(**options)(data, training)
    torch.testing.assert_close(out["inputs"], normalised(images))
    assert torch.equal(torch.stack(list(data["inputs"])), images)
    assert "gt_score" not in out["data_samples"][0]


@pytest.mark.parametrize("value", range(2))
def test_erasing_and_mixing_are_timms(value):
    """For batches of samples, and of labels alone."""
    data, labels = batch(), torch.arange(4)
    packed = [{"inputs": i, "data_samples": s} for i, s in zip(data["inputs"], data["data_samples"], strict=True)]
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, switch_prob=0.5, label_smoothing=0.1, num_classes=CLASSES)
    set_random_seed(value)
    expected = RandomErasing(1.0, mode="pixel", device="cpu")(normalised(data["inputs"]))
    expected, targets = mixup(expected, labels)
    for given in (collate_labels(packed), data):
        set_random_seed(value)
        out = build(reprob=1.0, mixup=0.8, cutmix=1.0, smoothing=0.1)(given, True)
        torch.testing.assert_close(out["inputs"], expected)
        torch.testing.assert_close(torch.stack([sample.gt_score for sample in out["data_samples"]]), targets)
        assert torch.equal(torch.cat([sample.gt_label for sample in out["data_samples"]]), labels)


@pytest.mark.parametrize("size", [1, 5])
def test_the_last_of_an_odd_batch_is_not_mixed(size):
    data = batch(size)
    last = normalised(data["inputs"][-1])
    out = build(mixup=0.8, smoothing=0.1)(data, True)
    torch.testing.assert_close(out["inputs"][-1], last)
    target = out["data_samples"][-1].gt_score
    torch.testing.assert_close(target.sum(), torch.tensor(1.0))
    assert target.argmax() == size - 1
    torch.testing.assert_close(target.min(), torch.tensor(0.1 / CLASSES))


@pytest.mark.parametrize("ended", [False, True])
def test_smoothing_alone_mixes_nothing(ended):
    """Or after a hook ends mixing: SwitchRecipeHook of MMPretrain assigns `batch_augments`."""
    preprocess = build(smoothing=0.2, **dict(mixup=0.8, cutmix=1.0) if ended else {})
    if ended:
        preprocess.batch_augments = None
        with pytest.raises(ValueError, match="batch_augments"):
            preprocess.batch_augments = Mixup()
    data = batch()
    images = data["inputs"].clone()
    out = preprocess(data, True)
    torch.testing.assert_close(out["inputs"], normalised(images))
    expected = torch.eye(CLASSES)[:4] * 0.8 + 0.2 / CLASSES
    torch.testing.assert_close(torch.stack([sample.gt_score for sample in out["data_samples"]]), expected)


def test_several_labels_of_an_image():
    data, targets = batch(), torch.eye(CLASSES)[[3, 5, 5, 0]] + torch.eye(CLASSES)[[1, 2, 7, 8]]
    samples = [DataSample().set_gt_score(target) for target in targets]
    packed = [{"inputs": i, "data_samples": s} for i, s in zip(data["inputs"], samples, strict=True)]
    for given in (collate_labels(packed), {**data, "data_samples": samples}):
        out = build(reprob=0.5)(given, True)
        assert torch.equal(torch.stack([sample.gt_score for sample in out["data_samples"]]), targets)
        with pytest.raises(ValueError, match="several labels"):
            build(smoothing=0.1)(given, True)
