"""Files for phones and other runtimes, with normalisation inside, and in half precision."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from soft_vit.export import FORMATS, ExportModel, export, load_export_model
from soft_vit.export.formats import Format, core_aten, core_decompositions, fold_constants
from soft_vit.export.quantization import labelled_images
from soft_vit.export.verified_file import relative_error
from soft_vit.weights.spec import ModelSpec

PACKAGES = {"openvino": "openvino", "executorch": "executorch", "litert": "litert_torch", "coreml": "coremltools"}


@pytest.mark.slow
@pytest.mark.parametrize(("format", "package"), PACKAGES.items())
@pytest.mark.parametrize("preprocessing", [False, True])
def test_every_runtime(format, package, preprocessing, tmp_path):
    """With trained weights, whose activations are larger than those of random ones."""
    pytest.importorskip(package)
    source = load_export_model("soft_plus_pico.fashion")
    lines: list[str] = []
    path = tmp_path / f"model{FORMATS[format].suffix}"
    export(source, path, format, preprocessing=preprocessing, report=lines.append)
    assert any("1 x 56 x 56: relative error" in line or "specification" in line for line in lines)
    beside = {"openvino": "model.bin", "executorch": "model.pte.json", "litert": "model.tflite.json"}
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, beside.get(format, path.name)}
    # ExecuTorch names operators that its plain loops compute, for up to fifty times as slow as XNNPACK.
    assert format != "executorch" or b"aten::addmm" not in path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soft_plus_pico.fashion", "care_s0"])
def test_int8_where_the_output_of_a_convolution_changes_its_dimensions(name, tmp_path):
    pytest.importorskip("nncf")
    source = load_export_model(name, pretrained="." in name)
    export(source, tmp_path / "model.xml", "openvino", int8=True, max_drop=100, report=lambda line: None)
    assert (tmp_path / "model.bin").exists()


def small_file(source: ExportModel, path) -> None:
    path.write_text("graph")
    path.with_suffix(".bin").write_text("weights")


def test_file_of_one_image_that_cannot_run_here(small, tmp_path, monkeypatch):
    """What is beside it is placed, too; nothing claims that it was compared."""
    monkeypatch.setitem(FORMATS, "phone", Format(".phone", small_file, lambda path: None, any_batch=False))
    lines: list[str] = []
    export(small, tmp_path / "model.phone", "phone", report=lines.append)
    assert {path.name for path in tmp_path.iterdir()} == {"model.phone", "model.bin"}
    assert "one image" in lines[0]
    assert not [line for line in lines if "relative error" in line]
    with pytest.raises(ValueError, match=r"any_size.*phone"):
        export(small, tmp_path / "model.phone", "phone", any_size=True, report=lines.append)


def test_error_of_a_converter_is_one_sentence(small, tmp_path, monkeypatch):
    def write(source, path):
        try:
            raise NotImplementedError("no aten.sort\nmore lines")
        except NotImplementedError as error:
            raise RuntimeError("A long report") from error

    monkeypatch.setitem(FORMATS, "phone", Format(".phone", write, lambda path: None, any_batch=False))
    with pytest.raises(ValueError, match=r"soft_pico .* phone \(no aten.sort"):
        export(small, tmp_path / "model.phone", "phone", report=lambda line: None)


def test_normalisation_inside(small):
    source = small.with_preprocessing()
    images = source.images(2, 64, 64)
    assert images.dtype == torch.uint8
    mean, std = (torch.tensor(values)[:, None, None] for values in (small.mean, small.std))
    torch.testing.assert_close(source.model(images), small.model((images / 255 - mean) / std), rtol=1e-4, atol=1e-5)
    told = source.metadata()
    assert (told["dtype"], json.loads(told["mean"]), json.loads(told["std"])) == ("uint8", [], [])
    assert small.metadata()["dtype"] == "float32"


def test_half_precision_rounds_around_the_formulas(small):
    half = small.half()
    images = small.images(2, 64, 64)
    error = relative_error([half.model(images)], [small.model(images)])
    assert torch.finfo(torch.float32).eps * 16 < error < 1e-2
    assert all(weight.dtype == torch.float32 for weight in small.model.parameters())


class Identity(nn.Module):
    def forward(self, x):
        return (x @ (torch.eye(x.shape[-1]) + torch.arange(x.shape[-1]))).detach()


def test_what_depends_on_sizes_alone_becomes_a_constant():
    source = ExportModel("identity", Identity(), (3, 5, 5), mean=(), std=())
    program = core_aten(source)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not names & {"aten.alias.default", "aten.detach.default", "aten._assert_tensor_metadata.default"}
    images = source.images(1, 5, 5)
    torch.testing.assert_close(program.module()(images), source.model(images))
    folded = fold_constants(program.module(check_guards=False))
    assert not [node for node in folded.graph.nodes if "arange" in str(node.target)]
    torch.testing.assert_close(folded(images), source.model(images))


def test_rolled_maps():
    maps = torch.randn(2, 5, 4)
    roll = core_decompositions()[torch.ops.aten.roll.default]
    assert torch.equal(roll(maps, [3, -2], [1, 2]), maps.roll((3, -2), (1, 2)))
    assert torch.equal(roll(maps, [0, 13], [1, -2]), maps.roll(13, 1))


@pytest.mark.parametrize("inside", [False, True])
def test_images_of_a_data_set_are_prepared_as_the_model_takes_them(inside, tmp_path):
    for split, count in (("train", 4), ("val", 2)):
        for index, name in enumerate(("one", "two")):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (40, 40), (100 * index, 0, i)).save(tmp_path / split / name / f"{i}.png")
    crop = dict(crop_pct=1.0, interpolation="bilinear")
    source = ExportModel("model", nn.Identity(), (3, 8, 8), (0.5,) * 3, (0.25,) * 3, classes=("two", "one"), crop=crop)
    source = source.with_preprocessing() if inside else source
    images, labels = labelled_images("train", 4, source, tmp_path)
    assert (images.shape, images.dtype) == ((4, 3, 8, 8), torch.uint8 if inside else torch.float32)
    assert labels.tolist() == [1, 1, 0, 0]
    reds = images[:, 0].float().mean((1, 2))
    expected = torch.tensor([0, 0, 100, 100]) if inside else (torch.tensor([0, 0, 100, 100]) / 255 - 0.5) / 0.25
    torch.testing.assert_close(reds, expected.float())
    # Evenly spaced, though eight are not a multiple of five. Folders have the names of the record, not its words.
    worded = replace(source, classes=("a", "b", "class 2"), spec=ModelSpec().with_classes(("two", "one"), False))
    assert labelled_images("train", 5, worded, tmp_path)[1].tolist() == [1, 1, 1, 0, 0]
    assert labelled_images("val", 9, replace(source, classes=()), tmp_path)[1] is None
