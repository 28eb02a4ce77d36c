"""Every format against the model, and what the files say of themselves; ONNX of a whole model in test_onnx.py."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

import soft_vit
from soft_vit.data import CLASSES
from soft_vit.export import FORMATS, ExportModel, export, load_export_model
from soft_vit.export.formats import METADATA_FILE
from soft_vit.layers import ATTENTIONS
from soft_vit.models import model_name
from soft_vit.predict import load_predictor
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.read import IMAGE_KEYS

# The folder of the code, which stands in traces of its nodes.
PACKAGE = str(Path(soft_vit.__file__).parent).encode()


# ONNX has neither stable sorting nor a Cholesky factor.
CANNOT = {("reformer", "onnx"): "aten.sort", ("skyformer", "onnx"): "linalg_cholesky"}


def source_of(name: str, img_size: int = 64, **options) -> ExportModel:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, img_size=img_size, **options).eval().requires_grad_(False)
    return ExportModel(name, model, (3, img_size, img_size), mean=(0.5,) * 3, std=(0.25,) * 3)


def silent(line: str) -> None:
    pass


@pytest.mark.slow
def test_torch_export_at_any_size(small, tmp_path):
    """A small model, because tests/models captures whole ones; here it is the file."""
    lines: list[str] = []
    path = export(small, tmp_path / "model.pt2", "torch_export", any_size=True, report=lines.append)
    shapes = {line.split(":")[0].strip() for line in lines if ": relative error" in line}
    assert {"1 x 64 x 64", "5 x 101 x 64", "1 x 64 x 197"} <= shapes
    with zipfile.ZipFile(path) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(METADATA_FILE))
        assert json.loads(archive.read(metadata)) == small.metadata()
        assert not [name for name in archive.namelist() if PACKAGE in archive.read(name)]


def test_features():
    source = load_export_model("soft_pico", pretrained=False, img_size=96, stages=[-1, 1])
    assert (source.outputs, source.classes) == (("stage1", "stage3"), ())
    maps = source.model(torch.randn(2, 3, 96, 96))
    assert [tuple(each.shape) for each in maps] == [(2, 64, 12, 12), (2, 160, 3, 3)]
    with pytest.raises(ValueError, match="4"):
        load_export_model("soft_pico", pretrained=False, img_size=96, stages=[4])


@pytest.mark.parametrize(
    "model",
    [
        {"model_name": "soft_pico", "img_size": 64},
        {"model_name": "linear_vit_tiny_patch16", "img_size": 96, "in_chans": 1, "depth": 1},
    ],
    ids=["pyramid", "ViT"],
)
def test_config_with_its_checkpoint(model, tmp_path):
    """Images are sized and normalised as in training, not as in timm's configuration of the model."""
    config = tmp_path / "config.py"
    own = f"image_size = {model['img_size']}\nmodel = dict(**{model})\n"
    config.write_text(f"_base_ = {str(RESOURCES / 'configs/demo/soft_pico_shapes.py')!r}\n{own}")
    weights = timm.create_model(num_classes=10, **model).state_dict()
    torch.save({"state_dict": weights, "meta": {"dataset_meta": {"classes": CLASSES}}}, tmp_path / "weights.pth")
    source = load_export_model(config=config, checkpoint=tmp_path / "weights.pth")
    assert source.name == model["model_name"]
    assert source.classes == CLASSES
    assert source.input_size == (model.get("in_chans", 3), model["img_size"], model["img_size"])
    assert source.std == pytest.approx((64 / 255,) * 3, abs=1e-6)


@pytest.mark.parametrize("img_size", [None, 96])
@pytest.mark.parametrize("crop", [None, dict(crop_pct=0.7, interpolation="bilinear", crop_mode="squash")], ids=str)
def test_metadata_prepare_images_as_the_predictor_does(crop, img_size, tmp_path):
    """Those of a timm model whose weights note their crop, and of a config with another one."""
    subject = {"model": "soft_pico.shapes", "img_size": img_size}
    if crop:
        config = tmp_path / "config.py"
        pipeline = [dict(type="TimmEvalCrop", img_size=64, **crop), dict(type="PackInputs")]
        config.write_text(
            f"_base_ = {str(RESOURCES / 'configs/demo/soft_pico_shapes.py')!r}\n"
            f"test_dataloader = dict(dataset=dict(pipeline={pipeline}))\n"
        )
        weights = RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors"
        subject = {"config": config, "checkpoint": weights, "img_size": img_size}
    source = load_export_model(**subject)
    texts = ("interpolation", "crop_mode")
    metadata = {key: value for key, value in source.metadata().items() if key in IMAGE_KEYS}
    told = {key: value if key in texts else json.loads(value) for key, value in metadata.items()}
    image = Image.fromarray(torch.randint(256, (90, 130, 3), dtype=torch.uint8).numpy())
    scores = source.model(create_transform(**told)(image)[None]).softmax(1)
    (expected,) = load_predictor(**subject, device="cpu", topk=10)([image])
    torch.testing.assert_close(scores[0].sort(descending=True)[0], torch.tensor(expected.scores), atol=1e-5, rtol=0)


def test_subject_of_a_checkpoint_says_how_its_images_were(pico, tmp_path):
    """A recorded file under another name, of a model that is known with other images."""
    shutil.copy(RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors", tmp_path / "a.safetensors")
    source = load_export_model("soft_pico", checkpoint=tmp_path / "a.safetensors")
    assert source.metadata() == {**pico.metadata(), "model": "soft_pico"}
    assert source.notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_attention(attention, format, tmp_path):
    source = source_of(model_name(attention, "pico"))
    path = tmp_path / f"model{FORMATS[format].suffix}"
    if (attention, format) in CANNOT:
        with pytest.raises(ValueError, match=CANNOT[attention, format]) as refused:
            export(source, path, format, report=silent)
        assert str(refused.value).isprintable()
    else:
        export(source, path, format, report=silent)
