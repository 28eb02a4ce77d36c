"""Classifiers of timm, shown their images as timm itself shows them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

from soft_vit.data import CLASSES, draw_shape
from soft_vit.engine.checkpoints.trained_config import cfg_of_config
from soft_vit.engine.config import load_config
from soft_vit.engine.errors import UserError
from soft_vit.prediction import TimmPredictor
from soft_vit.prediction.timm_predictor import readable_names
from soft_vit.weights.folders import RESOURCES
from soft_vit.weights.reading import NOTES_KEY, Notes

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py"


def photo(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_timm_model_sees_what_timm_shows_it():
    torch.manual_seed(0)
    predictor = TimmPredictor("test_vit", pretrained=False)
    images = [photo(200, 333), photo(50, 41)]
    found = predictor(images)
    config = timm.get_pretrained_cfg("test_vit")
    transform = create_transform(
        config.input_size,
        mean=config.mean,
        std=config.std,
        interpolation=config.interpolation,
        crop_pct=config.crop_pct,
    )
    with torch.no_grad():
        scores = predictor.model(torch.stack([transform(image) for image in images])).softmax(1)
    for result, expected in zip(found, scores, strict=True):
        best = expected.topk(5)
        assert result.indices == best.indices.tolist()
        assert result.scores == pytest.approx(best.values.tolist())
    assert predictor.names[281] == "tabby, tabby cat"


def test_size_of_the_images_of_a_timm_model():
    predictor = TimmPredictor("soft_pico", pretrained=False, img_size=96)
    assert predictor.transform(photo(200, 300)).shape == (3, 96, 96)
    assert predictor.model.img_size == (96, 96)


def test_weights_bring_their_own_classes(ten_classes):
    predictor = TimmPredictor("soft_pico", checkpoint=ten_classes, img_size=64)
    expected = torch.load(ten_classes, weights_only=True)["state_dict"]["head.weight"]
    torch.testing.assert_close(predictor.model.head.weight, expected)
    assert predictor.names == list(CLASSES)


@pytest.mark.parametrize(
    ("img_size", "untold"),
    [(None, "the size and normalisation of its images"), (64, "the normalisation of its images")],
)
def test_what_nothing_says_is_noted(ten_classes, img_size, untold):
    notes = TimmPredictor("soft_pico", checkpoint=ten_classes, img_size=img_size).notes
    assert notes[0] == f"Nothing in {ten_classes} says {untold}; the defaults of soft_pico are used."
    # From 64 to 224 pixels.
    assert ["resampled" in note for note in notes[1:]] == ([True] if img_size is None else [])


CROSS = Image.fromarray(draw_shape(seed=1, index=5).image)
SHAPES = RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors"


def noted(**cfg) -> dict:
    """The meta of a checkpoint of soft_pico that says this of its images."""
    return {NOTES_KEY: Notes("soft_pico", {"img_size": list(cfg["input_size"][1:])}, cfg).to_dict()}


@pytest.mark.parametrize("source", ["recorded file", "checkpoint of a training"])
def test_checkpoint_says_how_its_images_were(source, tmp_path):
    expected = TimmPredictor("soft_pico.shapes")
    path = tmp_path / ("a.safetensors" if source == "recorded file" else "a.pth")
    if source == "recorded file":
        shutil.copy(SHAPES, path)
    else:
        meta = noted(**cfg_of_config(load_config(DEMO)), label_names=CLASSES)
        torch.save({"state_dict": expected.model.state_dict(), "meta": meta}, path)
    predictor = TimmPredictor("soft_pico", checkpoint=path)
    assert predictor.notes == []
    assert predictor.names == list(CLASSES)
    (found,), (right,) = predictor([CROSS]), expected([CROSS])
    assert found == right
    assert found.names[0] == "cross"
    assert found.scores[0] > 0.99


def test_sides_of_a_checkpoints_images(tmp_path):
    meta = noted(input_size=(3, 64, 96), mean=(0, 0, 0), std=(1, 1, 1))
    weights = timm.create_model("soft_pico", num_classes=3, img_size=(64, 96)).state_dict()
    torch.save({"state_dict": weights, "meta": meta}, tmp_path / "a.pth")
    # Its grid is not square, so that it fits no other size.
    predictor = TimmPredictor("soft_pico", checkpoint=tmp_path / "a.pth")
    assert predictor.notes == []
    assert predictor.transform(photo(80, 90)).shape == (3, 64, 96)
    assert predictor.transform(Image.new("RGB", (90, 80), "white")).unique().tolist() == [1.0]


def training_checkpoint(path: Path, **notes) -> Path:
    """A checkpoint that notes a model with options."""
    torch.manual_seed(0)
    weights = timm.create_model("soft_pico", num_classes=10, img_size=64).state_dict()
    torch.save({"state_dict": weights, "meta": {NOTES_KEY: {"model": "soft_pico", **notes}}}, path)
    return path


def test_options_are_those_of_the_training(tmp_path):
    path = training_checkpoint(tmp_path / "a.pth", cfg={"input_size": (3, 64, 64)}, options={"newton_iters": 1})
    images = torch.randn(2, 3, 64, 64)
    model = TimmPredictor("soft_pico", checkpoint=path).model
    with torch.no_grad():
        found = model(images)
        expected = []
        for options in ({"newton_iters": 1}, {}):
            other = timm.create_model("soft_pico", num_classes=10, img_size=64, **options).eval()
            other.load_state_dict(model.state_dict())
            expected.append(other(images))
    assert torch.equal(found, expected[0])
    assert not torch.equal(found, expected[1])


@pytest.mark.parametrize(
    ("name", "notes", "message"),
    [
        ("soft_norm_pico", {}, "create soft_pico for it"),
        ("soft_pico", {"model": "soft_norm_pico"}, "create soft_norm_pico for it"),
        ("soft_pico", {"options": {"inverse": "magic"}}, "cannot be made as the checkpoint says"),
        ("soft_pico", {"options": {"depths": 3}}, "cannot be made as the checkpoint says"),
        ("soft_pico", {"cfg": {"input_size": (3, 7, 7)}}, "images of 7 x 7"),
        ("soft_pico", {"cfg": {"input_size": (3, 64, 7)}}, "images of 64 x 7"),
    ],
)
def test_checkpoint_of_another_model_is_refused(name, notes, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        TimmPredictor(name, checkpoint=training_checkpoint(tmp_path / "a.pth", **notes))
    assert "\n" not in str(caught.value)


def test_synsets_become_words_and_other_names_stay():
    assert readable_names(["n01440764", "n02123045"]) == ["tench, Tinca tinca", "tabby, tabby cat"]
    assert readable_names(["n01440764", "cat"]) == ["n01440764", "cat"]
    assert readable_names(["n99999999"]) == ["n99999999"]


def test_weights_without_a_head_are_refused(ten_classes, tmp_path):
    state = torch.load(ten_classes, weights_only=True)["state_dict"]
    torch.save({name: value for name, value in state.items() if not name.startswith("head.")}, tmp_path / "body.pth")
    with pytest.raises(UserError, match="holds no head"):
        TimmPredictor("soft_pico", checkpoint=tmp_path / "body.pth")


def test_model_without_a_head_is_refused(monkeypatch):
    # Those that timm publishes without one are large.
    body = timm.create_model("test_vit", num_classes=0)
    monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: body)
    with pytest.raises(UserError, match="has no head"):
        TimmPredictor("test_vit", pretrained=False)
