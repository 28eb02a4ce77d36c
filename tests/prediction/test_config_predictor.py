"""Models of configs, fed as their test loops feed them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS
from mmengine.runner import Runner
from PIL import Image

from soft_vit.data import CLASSES, ShapeImages
from soft_vit.data.shape_trees import make_tree
from soft_vit.engine.config import load_config
from soft_vit.engine.errors import UserError
from soft_vit.prediction import ConfigPredictor
from soft_vit.prediction.results import Result

CONFIGS = Path(__file__).parents[2] / "configs"
DEMO = CONFIGS / "demo" / "soft_pico_shapes.py"


def photo(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_classifier_of_a_config_sees_what_its_test_shows_it(ten_classes):
    config = load_config(DEMO)
    config.test_dataloader.dataset.length = 3
    predictor = ConfigPredictor(DEMO, ten_classes, topk=10)
    # Its transforms are found in the scope that the predictor has set.
    loader = Runner.build_dataloader(config.test_dataloader)
    with torch.no_grad():
        expected = predictor.model.test_step(next(iter(loader)))
    found = predictor([Image.fromarray(sample.image) for sample in ShapeImages(3, "test", size=64)])
    for result, sample in zip(found, expected, strict=True):
        scores = sample.pred_score[result.indices]
        assert result.scores == pytest.approx(scores.tolist(), abs=1e-6)
        assert result.names == [CLASSES[index] for index in result.indices]


def test_averaged_weights_come_first(ten_classes):
    state = torch.load(ten_classes, weights_only=True)["state_dict"]
    torch.testing.assert_close(ConfigPredictor(DEMO, ten_classes).model.model.head.weight, state["head.weight"])


def test_published_weights_of_a_config_are_not_downloaded_first(ten_classes):
    """There are none of soft_pico, and asking for them is an error."""
    ConfigPredictor(DEMO, ten_classes, options={"model.pretrained": True})


@pytest.mark.parametrize("img_size", [None, 96])
def test_images_of_any_size_fit_a_config_of_drawn_ones(ten_classes, img_size):
    predictor = ConfigPredictor(DEMO, ten_classes, img_size=img_size)
    assert len(predictor([photo(100, 200), photo(33, 31)])) == 2


def test_pipeline_that_loads_by_mmcv_gets_its_order_of_channels(ten_classes, tmp_path):
    config = load_config(DEMO)
    transforms = [
        dict(type="LoadImageFromFile"),
        dict(type="ResizeEdge", scale=64),
        dict(type="CenterCrop", crop_size=64),
        dict(type="PackInputs"),
    ]
    config.test_dataloader.dataset = dict(type="CustomDataset", data_root="none", pipeline=transforms)
    config.data_preprocessor.to_rgb = True
    config.dump(tmp_path / "config.py")
    photo(70, 81).save(tmp_path / "photo.png")
    predictor = ConfigPredictor(tmp_path / "config.py", ten_classes, topk=10)
    sample = Compose(transforms)({"img_path": str(tmp_path / "photo.png")})
    with torch.no_grad():
        (expected,) = predictor.model.test_step(pseudo_collate([sample]))
    (found,) = predictor([photo(70, 81)])
    assert found.scores == pytest.approx(expected.pred_score[found.indices].tolist(), abs=1e-6)


def dense_config(kind: str, folder: Path) -> tuple[Config, Path]:
    """A config of a detector or segmentation model on a generated tree, and a checkpoint with random weights."""
    task, name = {"detection": ("coco", "mask_rcnn"), "segmentation": ("ade", "upernet")}[kind]
    make_tree(folder / "data", task, train=1, val=3, size=(96, 130), seed=0)
    path = folder / "config.py"
    # No instance but those that it has to keep would pass the usual least score.
    more = "model = dict(box_score_thresh=0.0, box_detections_per_img=5)" if kind == "detection" else ""
    base = CONFIGS / kind / f"{name}_soft_pico_shapes.py"
    path.write_text(f'_base_ = ["{base}"]\n{more}\n')
    config = load_config(path)
    config.merge_from_dict({"test_dataloader.dataset.data_root": str(folder / "data")})
    config.dump(path)
    torch.manual_seed(0)
    model = MODELS.build(dict(config.model, data_preprocessor=config.get("data_preprocessor")))
    torch.save({"state_dict": model.state_dict()}, folder / "weights.pth")
    return config, path


def as_tested(config: Config, predictor: ConfigPredictor) -> tuple[list, list[Image.Image]]:
    """What the model of a config predicts for its test data, and the images."""
    loader = Runner.build_dataloader(config.test_dataloader)
    predicted = []
    with torch.no_grad():
        for batch in loader:
            predicted += predictor.model.test_step(batch)
    folder = Path(config.test_dataloader.dataset.data_root)
    paths = sorted(path for path in folder.rglob("*.jpg") if "val" in path.parent.name)
    return predicted, [Image.open(path).convert("RGB") for path in paths]


@pytest.fixture(scope="module", params=["detection", "segmentation"])
def dense(request, tmp_path_factory) -> tuple[str, ConfigPredictor, list, list[Result], list[Image.Image]]:
    """Kind, predictor, samples as tested, results, and the images of a dense model."""
    folder = tmp_path_factory.mktemp(request.param)
    config, path = dense_config(request.param, folder)
    predictor = ConfigPredictor(path, folder / "weights.pth", score_thr=0.0)
    samples, images = as_tested(config, predictor)
    return request.param, predictor, samples, predictor(images), images


def test_dense_model_sees_what_its_test_shows_it(dense):
    kind, _, samples, results, images = dense
    assert len(samples) == len(results) == len(images) == 3
    for sample, result, image in zip(samples, results, images, strict=True):
        assert result.task == kind
        if kind == "detection":
            assert len(result.labels) == 5
            np.testing.assert_allclose(result.boxes, sample.pred_instances.bboxes, rtol=1e-5, atol=1e-3)
            assert result.labels == sample.pred_instances.labels.tolist()
            assert result.masks.shape[1:] == image.size[::-1]
            np.testing.assert_array_equal(result.masks, sample.pred_instances.masks)
        else:
            np.testing.assert_array_equal(result.classes, sample.pred_sem_seg.data[0])
            assert result.classes.shape == image.size[::-1]


def test_names_of_a_dense_models_classes_come_from_its_data(dense):
    kind, predictor, *_ = dense
    assert set(CLASSES) <= set(predictor.names)
    assert len(predictor.names) == (10 if kind == "detection" else 11)


def test_odd_images_in_one_batch(dense):
    _, predictor, *_ = dense
    assert len(predictor([photo(63, 50), photo(33, 200)])) == 2


def test_size_of_images_is_that_of_a_dense_config(dense, tmp_path):
    kind, *_ = dense
    _, path = dense_config(kind, tmp_path)
    with pytest.raises(UserError, match="changes classifiers of timm alone"):
        ConfigPredictor(path, tmp_path / "weights.pth", img_size=64)
