"""Looks of models at a picture, what the page shows of them, and which files are accepted as pictures."""

import numpy as np
import pytest
import timm
import torch
from crafted import encoded
from PIL import Image

from soft_vit.data import ShapeImages
from soft_vit.data.demo.shapes import COLORS
from soft_vit.data.images import BadImage
from soft_vit.predict import TimmPredictor, app_look
from soft_vit.predict.app_look import Choice, available, load_choice, look, open_picture
from soft_vit.probe.view import attention_row, draw_weights
from soft_vit.weights import RECORDED_WEIGHTS

PLACE = (0.3, 0.8)


def picture_of(width: int = 64, height: int = 64) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def trained() -> TimmPredictor:
    return load_choice(Choice("soft_plus_pico.tiles", True))


def test_the_right_tile_attends_to_the_cue(trained):
    """The largest weight of stage 1 is in the cue: found by its white half, where a tile has none."""
    sample = ShapeImages(1, split="test", scene="tiles")[0]
    found = look(trained, Image.fromarray(sample.image))
    assert found.prediction.names[0] == tuple(COLORS)[sample.label]
    x0, y0, x1, y1 = sample.box / 64
    weights = found.shown[0].row(((x0 + x1) / 2, (y0 + y1) / 2)).mean(0)
    row, column = np.divmod(weights.argmax(), 16)
    assert sample.image[row // 4 * 16 :, column // 4 * 16 :][:16, 8:16].min() > 150


@pytest.mark.parametrize(("depth", "layers"), [("first", [1, 1, 1, 1]), ("last", [1, 1, 2, 1])])
def test_rows_are_those_of_the_tool(trained, depth, layers):
    found, image = look(trained, picture_of(), depth), trained.transform(picture_of())
    assert [(layer.stage, layer.layer) for layer in found.shown] == list(enumerate(layers, 1))
    for layer in found.shown:
        expected = attention_row(trained.model, image, layer.stage, layer.cell(PLACE), layer.layer - 1)
        np.testing.assert_allclose(layer.row(PLACE), expected.weights, rtol=1e-4, atol=1e-7)
    (whole,) = trained([picture_of()])
    np.testing.assert_allclose(found.prediction.scores, whole.scores, rtol=1e-5)
    assert not any("attend" in vars(module) for module in trained.model.modules())


MODELS = [
    # Sides of the maps: a class token and reduced keys, one stage, and stages without attention of this package.
    ("spatial_reduction_pyramid_pico", {"spatial_reduction", "softmax"}, [16, 8, 4, 2]),
    ("linear_vit_tiny_patch16", {"linear"}, [4]),
    ("flatten_swin_tiny", {"FlattenAttention"}, [16, 8]),
    # One stage, whose blocks are called layers.
    ("vrwkv_tiny", {"rwkv"}, [4]),
    # Not linear in its values.
    ("vittt_tiny", {"ttt"}, [None]),
]


@pytest.mark.parametrize(("name", "kinds", "sides"), MODELS)
def test_every_form_of_model(name, kinds, sides):
    found = look(TimmPredictor(name, pretrained=False, img_size=64), picture_of(), "middle")
    assert {layer.probe.attention for layer in found.layers} == kinds
    shapes = [layer.matrix is not None and layer.row(PLACE).shape[1:] for layer in found.shown]
    assert shapes == [side is not None and (side, side) for side in sides]
    assert all(layer.probe.share > 0 for layer in found.shown)


def test_windows_and_maps_of_oblong_images_are_not_shown():
    predictor = TimmPredictor("soft_pico", pretrained=False, img_size=64)
    for name, size, options in (("soft_pico", (32, 64), {}), ("inline_swin_tiny", (64, 64), {"window_size": 8})):
        predictor.model = timm.create_model(name, img_size=size, **options).eval()
        predictor.transform = lambda picture, size=size: torch.zeros(3, *size)
        assert look(predictor, picture_of()).shown[0].matrix is None


def test_random_weights_are_reproducible_and_keep_the_global_generator():
    before = torch.random.get_rng_state()
    first, second = (load_choice(Choice("soft_pico")).model.head.weight for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())


def test_what_is_available_needs_no_download(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", str(tmp_path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    vit = "deit_tiny_patch16_224.fb_in1k"
    monkeypatch.setattr(app_look, "try_to_load_from_cache", lambda name, _: name == f"timm/{vit}")
    before = available()
    shipped = ["soft_pico.shapes", "soft_plus_pico.tiles", "soft_plus_pico.fashion"]
    assert list(before) == [*shipped, vit, f"{vit} with soft", f"{vit} with linear"]
    assert [choice.swapped for choice in before.values()] == [None, None, None, "softmax", "soft", "linear"]
    entry = RECORDED_WEIGHTS["soft_tiny.fudan_in1k"]
    (tmp_path / entry.file).touch()
    assert [title for title in available() if title not in before] == [entry.name]
    assert next(iter(available("my.pth", "soft_tiny").values())) == Choice("soft_tiny", checkpoint="my.pth")
    assert next(iter(available(None, "soft_tiny").items())) == ("soft_tiny, random weights", Choice("soft_tiny"))


def test_softmax_of_timm_has_a_matrix_and_the_same_prediction():
    image = picture_of(160, 160)
    found = look(load_choice(Choice("test_vit", swapped="softmax")), image)
    assert found.prediction.scores == pytest.approx(load_choice(Choice("test_vit"))([image])[0].scores, rel=1e-5)
    np.testing.assert_allclose(found.shown[0].matrix.sum(-1), 1, rtol=1e-5)


def test_heads_share_a_scale_of_colours():
    """A dead head is dark next to one that lives."""
    weights = np.zeros((2, 2, 2))
    weights[0, 0, 0], weights[1] = 1, 1e-3
    alone, beside = (
        np.asarray(draw_weights(weights[1], Image.new("RGB", (64, 64)), (0, 0), (2, 2), scale)).mean()
        for scale in (None, weights)
    )
    assert alone > beside


OTHERS = [
    (encoded(picture_of())[:5000], 0, "truncated"),
    (encoded(Image.new("1", (10_000, 10_000))), 0, "10000 x 10000 pixels, more than 64 million"),
    (b"", 0, "not an image of a known format"),
    (b"", 31 << 20, "more than 30 MB"),
]


@pytest.mark.parametrize(("data", "size", "said"), OTHERS)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_other_files_are_refused_in_a_sentence(data, size, said):
    with pytest.raises(BadImage, match=rf"cannot be read as an image \(.*{said}.*\); give another\.$"):
        open_picture(data, size)


def test_a_model_without_attention_is_refused():
    with pytest.raises(ValueError, match="attention"):
        look(TimmPredictor("test_resnet", pretrained=False), picture_of())
