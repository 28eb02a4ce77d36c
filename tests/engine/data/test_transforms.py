"""From an image to a batch: transforms, what a test shows, mixing and normalising."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, TRANSFORMS
from mmengine.runner import set_random_seed
from mmpretrain.structures import DataSample
from PIL import Image
from timm.data import Mixup, create_transform
from timm.data.random_erasing import RandomErasing

import soft_vit.engine  # noqa: F401  registers the transforms
from soft_vit.engine import TimmAugment, TimmEvalCrop
from soft_vit.engine.data.preprocessor import collate_labels
from soft_vit.engine.data.views import View, set_view, view_of_config

# Transforms against timm and Albumentations.


IMAGE = np.random.default_rng(0).integers(0, 256, (45, 67, 3), dtype=np.uint8)
RECIPE = {"auto_augment": "rand-m9-mstd0.5-inc1", "color_jitter": 0.4, "interpolation": "bicubic"}


@pytest.mark.parametrize("size", [33, (31, 40)])
def test_timms_augmentation_as_it_is(size):
    ours = TRANSFORMS.build({"type": "TimmAugment", "img_size": size, **RECIPE})
    timms = create_transform(size, is_training=True, use_prefetcher=True, **RECIPE)
    for value in range(5):
        set_random_seed(value)
        expected = torch.as_tensor(np.asarray(timms(Image.fromarray(IMAGE))))
        set_random_seed(value)
        image = ours({"img": IMAGE})["img"]
        assert image.dtype == torch.uint8
        assert torch.equal(image, expected)


@pytest.mark.parametrize("magnitude", [0, 10])
def test_posterize_at_every_strength(magnitude):
    ours = TimmAugment(33, auto_augment=f"rand-m{magnitude}-mstd0-inc1-p1.0")
    policy = next(step for step in ours.augment.transforms if hasattr(step, "ops"))
    op = next(op for op in policy.ops if op.name == "PosterizeIncreasing")
    image = np.asarray(op(Image.fromarray(IMAGE)))
    bits = 4 - int(magnitude / 10 * 4)
    assert np.array_equal(image, IMAGE & (0xFF00 >> bits & 0xFF))


def albumentations(*transforms: dict):
    return TRANSFORMS.build({"type": "AlbumentationsTransform", "transforms": list(transforms)})


CROP = {"type": "RandomResizedCrop", "size": (31, 40)}


def test_albumentations_draws_from_numpys_generator():
    ours = albumentations(CROP, {"type": "OneOf", "transforms": [{"type": "HorizontalFlip"}, {"type": "InvertImg"}]})
    results = []
    for value in (0, 1, 0, 2):
        set_random_seed(value)
        results.append(ours({"img": Image.fromarray(IMAGE)})["img"])
    assert results[0].shape == (31, 40, 3)
    assert [np.array_equal(results[0], other) for other in results[1:]] == [False, True, False]


MISTAKES = [({**CROP, "foo": 1}, "'foo'"), ({"type": "OneOf", "transforms": [{"type": "Flop"}]}, "Flop")]


@pytest.mark.parametrize(("transform", "named"), MISTAKES)
def test_mistakes_for_albumentations(transform, named):
    with pytest.raises((Warning, AttributeError), match=named):
        albumentations(transform)


CROPS = [(48, 0.875, "bicubic", "center", True), (33, 1.0, "bilinear", "center", False)]
CROPS += [(40, 0.9, "bicubic", "squash", False)]


@pytest.mark.parametrize(("size", "crop_pct", "interpolation", "crop_mode", "as_array"), CROPS)
def test_crop_is_timms(size, crop_pct, interpolation, crop_mode, as_array):
    pixels = np.random.default_rng(0).integers(0, 256, (61, 83, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    result = TimmEvalCrop(size, crop_pct, interpolation, crop_mode)({"img": pixels if as_array else image})
    # Normalised by nothing, timm's own values are pixels / 255.
    options = {"crop_pct": crop_pct, "interpolation": interpolation, "crop_mode": crop_mode}
    expected = create_transform(size, mean=(0.0,) * 3, std=(1.0,) * 3, **options)(image)
    assert result["img_shape"] == (size, size)
    np.testing.assert_allclose(result["img"].transpose(2, 0, 1) / 255, expected.numpy(), atol=1e-6)


# What a test shows of an image, by a config or by timm, and what its classes are called.


def config(pipeline: list, **dataset) -> Config:
    loader = {"dataset": {"type": "AnyDataset", "pipeline": pipeline, **dataset}}
    return Config({"test_dataloader": loader, "model": {"type": "AnyModel"}})


RESIZE = {"type": "ResizeEdge", "scale": 256}


VIEWS = [
    (config([{"type": "TimmEvalCrop", "img_size": 224, "crop_pct": 0.9}]), (288, None), View(288, 0.9)),
    (config([{"type": "soft_vit.TimmEvalCrop", "img_size": 192}]), (None, 1.0), View(192, 1.0)),
    (config([], size=64), (96, None), View(96, 1.0)),
    (config([]), (100, None), View(100, 0.875)),
]


@pytest.mark.parametrize(("cfg", "asked", "expected"), VIEWS)
def test_view_of_a_config(cfg, asked, expected):
    assert view_of_config(cfg, *asked) == expected
    with pytest.raises(ValueError, match="img_size"):
        view_of_config(config([]), None, 0.9)


def test_view_is_set_between_loading_and_packing():
    """In each data set inside of others."""
    load, pack = {"type": "LoadImageFromFile"}, {"type": "mmpretrain.datasets.PackInputs", "meta_keys": ()}
    drawn = {"type": "A", "size": 64}
    inner = [{"type": "RepeatDataset", "dataset": drawn}, {"type": "B", "pipeline": [load, RESIZE, pack]}]
    cfg = Config({"test_dataloader": {"dataset": {"type": "ConcatDataset", "datasets": inner}}, "model": {}})
    set_view(cfg, View(96, 0.9, "lanczos", "squash", (0.5, 0.4, 0.3), (0.2, 0.2, 0.2)))
    crop = {"type": "TimmEvalCrop", "img_size": 96, "crop_pct": 0.9, "interpolation": "lanczos", "crop_mode": "squash"}
    repeated, other = cfg.test_dataloader.dataset.datasets
    assert repeated.dataset == {"type": "A", "size": 96, "pipeline": [crop, {"type": "PackInputs"}]}
    assert other.pipeline == [load, crop, pack]
    assert "pipeline" not in cfg.test_dataloader.dataset
    assert cfg.data_preprocessor.mean == pytest.approx([127.5, 102, 76.5])
    assert cfg.data_preprocessor.std == pytest.approx([51, 51, 51])


# Batches on their device: normalised, erased and mixed as timm does it.


MEAN, STD, CLASSES = [100.0, 110.0, 120.0], [50.0, 60.0, 70.0], 11


def batch(size: int = 4, stacked: bool = True) -> dict:
    images = torch.randint(0, 256, (size, 3, 17, 21), dtype=torch.uint8)
    samples = [DataSample().set_gt_label(i % CLASSES) for i in range(size)]
    return {"inputs": images if stacked else list(images), "data_samples": samples}


def build(**kwargs):
    return MODELS.build({"type": "RecipeDataPreprocessor", "mean": MEAN, "std": STD, "num_classes": CLASSES, **kwargs})


def normalised(images: torch.Tensor) -> torch.Tensor:
    return (images.float() - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


PREPARED = [(True, False, {}), (True, True, {}), (False, False, dict(reprob=1.0, mixup=0.8, cutmix=1.0, smoothing=0.1))]


@pytest.mark.parametrize(("stacked", "training", "options"), PREPARED)
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
