"""A test that sees several views of each image, against scores that are merged by hand."""

import json

import timm
import torch
from evaluated import DEMO, OPTIONS, Model, agrees, expected_on_folder, expected_on_shapes
from mmengine.config import Config

from soft_vit.engine import evaluate


def mean_of_mirrored(model: Model, axis: int = -1) -> Model:
    """Logarithms of the mean of the probabilities for an image and its mirror image."""
    return lambda images: (sum(model(x).softmax(1) for x in (images, images.flip(axis))) / 2).log()


def test_views_of_the_config(checkpoint, models, tmp_path):
    flips = [{"type": "RandomFlip", "prob": prob, "direction": "vertical"} for prob in (0.0, 1.0)]
    views = {"type": "TestTimeAug", "transforms": [flips, [{"type": "PackInputs"}]]}
    own = {"tta_pipeline": [{"type": "LoadedImage"}, views], "tta_model": {"type": "AverageClsScoreTTA"}}
    # A model's own preprocessor comes before that of the config, with one view or with two.
    own["data_preprocessor"] = {"type": "ClsDataPreprocessor", "mean": [0.0] * 3, "std": [1.0] * 3}
    own["model.data_preprocessor"] = {"type": "ClsDataPreprocessor", "mean": [127.5] * 3, "std": [64.0] * 3}
    out = tmp_path / "out.json"
    metrics = evaluate(DEMO, checkpoint, tta=True, ema=False, out=out, work_dir=tmp_path, options=OPTIONS | own)
    assert agrees(metrics, expected_on_shapes(mean_of_mirrored(models["plain"], axis=-2)))
    assert json.loads(out.read_text())["tta"] is True


def test_an_image_and_its_mirror_image_in_a_folder(models, folders, tmp_path):
    """The name of a timm model brings a normalisation of its own; the config of the training stays."""
    torch.save(models["averaged"].state_dict(), tmp_path / "weights.pth")
    (tmp_path / DEMO.name).write_text("trained = True")
    files = {"data_root": folders / "numbered", "work_dir": tmp_path}
    files["weights"] = str(tmp_path / "weights.pth")
    options = {**OPTIONS, "model.num_classes": 10}
    metrics = evaluate(DEMO, "soft_pico", tta=True, img_size=32, crop_pct=0.8, **files, options=options)
    cfg = timm.get_pretrained_cfg("soft_pico")
    view = (32, 0.8, cfg.mean[0], cfg.std[0])
    assert agrees(metrics, expected_on_folder(mean_of_mirrored(models["averaged"]), folders / "numbered", *view))
    assert (tmp_path / DEMO.name).read_text() == "trained = True"
    assert Config.fromfile(tmp_path / "soft_pico_shapes_test.py").model.type == "mmpretrain.AverageClsScoreTTA"
