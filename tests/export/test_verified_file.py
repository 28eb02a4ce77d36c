"""A file that differs from the model is found, named and not kept."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from soft_vit.export import FORMATS, ExportModel, export
from soft_vit.export.verified_file import compare, relative_error


class Scaled(nn.Module):
    """Sums of the pixels of each image; scale is set after the file was written."""

    scale = 1.0

    def forward(self, x):
        return self.scale * x.mean((2, 3))


@pytest.fixture
def source() -> ExportModel:
    return ExportModel("scaled", Scaled().eval(), (3, 64, 64), mean=(0.0,) * 3, std=(1.0,) * 3)


@pytest.mark.parametrize(
    ("given", "expected", "error"),
    [
        ([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])], 0.2),
        ([torch.tensor([10.0, 2000.0]), torch.tensor([0.5])], [torch.tensor([-10.0, 2000.0]), torch.tensor([0.25])], 1),
        ([torch.zeros(2)], [torch.zeros(2)], 0),
        ([torch.tensor([1.0, float("nan")])], [torch.tensor([1.0, 2.0])], float("inf")),
        ([torch.zeros(2)], [torch.zeros(3)], float("inf")),
        ([torch.zeros(2)], [torch.zeros(2), torch.zeros(2)], float("inf")),
    ],
    ids=["number", "each output by its own size", "zeros", "no number", "another shape", "an output fewer"],
)
def test_relative_error(given, expected, error):
    assert relative_error(given, expected) == pytest.approx(error)


def test_refused_batch_is_one_sentence(source):
    def refuse(images):
        raise RuntimeError("Guard failed: 3 == 4\nmore lines")

    with pytest.raises(ValueError, match=r"1 x 64 x 64 \(Guard failed: 3 == 4\)"):
        compare(refuse, source, [(64, 64)])


def test_file_that_differs_is_not_kept(source, tmp_path, monkeypatch):
    out = tmp_path / "model.pt"
    out.write_bytes(b"from before")
    write = FORMATS["torchscript"].write

    def write_another(source, path, **options):
        write(source, path, **options)
        source.model.scale = 2.0

    monkeypatch.setitem(FORMATS, "torchscript", replace(FORMATS["torchscript"], write=write_another))
    with pytest.raises(ValueError, match="differs from the model by up to"):
        export(source, out, "torchscript", report=lambda line: None)
    assert out.read_bytes() == b"from before"
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize(
    ("name", "format", "options", "message"),
    [
        ("model.onnx", "torchscript", {}, "does not end in .pt"),
        ("model.onnx", "onxx", {}, "onxx"),
        ("model.pt", "torchscript", {"any_size": True}, "one size of images"),
        ("model.pt", "torchscript", {"int8": True}, "--int8 belongs to ONNX"),
        ("model.pt2", "torch_export", {"opset": 18}, "--opset belongs to ONNX"),
    ],
)
def test_what_does_not_go_together(source, name, format, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(source, tmp_path / name, format, **options)
    assert not list(tmp_path.iterdir())


def test_place_that_cannot_be_written_is_refused_before_the_work(source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        export(source, tmp_path / "file" / "model.pt", "torchscript", report=pytest.fail)


def test_int8_of_maps_is_refused(source, tmp_path):
    maps = replace(source, outputs=("stage0",))
    with pytest.raises(ValueError, match="give a classifier"):
        export(maps, tmp_path / "model.onnx", "onnx", int8=True)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_package_is_named(package, source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"ONNX needs {package}; pip install"):
        export(source, tmp_path / "model.onnx", "onnx", report=lambda line: None)


@pytest.mark.slow
def test_opset(source, tmp_path, capfd, caplog):
    onnx = pytest.importorskip("onnx")
    path = export(source, tmp_path / "model.onnx", "onnx", opset=18, report=lambda line: None)
    assert onnx.load(path).opset_import[0].version == 18
    # torch goes on with the version that it knows.
    with pytest.raises(ValueError, match="instead of 5"):
        export(source, tmp_path / "other.onnx", "onnx", opset=5, report=lambda line: None)
    assert not (tmp_path / "other.onnx").exists()
    # Nor does it print the traceback of the conversion that failed.
    assert "Traceback" not in capfd.readouterr().err + caplog.text
