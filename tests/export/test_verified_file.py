"""A file that differs from the model is found, named and not kept."""

import math
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


ERRORS = {
    "number": ([[1.0, 2.0]], [[1.0, 2.5]], 0.2),
    "each output by its own size": ([[10.0, 2000.0], [0.5]], [[-10.0, 2000.0], [0.25]], 1),
    "zeros": ([[0.0, 0.0]], [[0.0, 0.0]], 0),
    "no number": ([[1.0, math.nan]], [[1.0, 2.0]], math.inf),
    "another shape": ([[0.0, 0.0]], [[0.0, 0.0, 0.0]], math.inf),
    "an output fewer": ([[0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], math.inf),
}


@pytest.mark.parametrize(("given", "expected", "error"), ERRORS.values(), ids=ERRORS)
def test_relative_error(given, expected, error):
    found = relative_error(*([torch.tensor(row) for row in rows] for rows in (given, expected)))
    assert found == pytest.approx(error)


def test_refused_batch_is_one_sentence(source):
    def refuse(images):
        raise RuntimeError("Guard failed: 3 == 4\nmore lines")

    for run, model in ((refuse, source), (source.model, replace(source, model=refuse))):
        with pytest.raises(ValueError, match=r"1 x 64 x 64 \(Guard failed: 3 == 4\)"):
            compare(run, model, [(64, 64)])


def test_file_that_differs_is_not_kept(source, tmp_path, monkeypatch):
    out = tmp_path / "model.pt2"
    out.write_bytes(b"from before")
    write = FORMATS["torch_export"].write

    def write_another(source, path, **options):
        write(source, path, **options)
        source.model.scale = 2.0

    monkeypatch.setitem(FORMATS, "torch_export", FORMATS["torch_export"]._replace(write=write_another))
    with pytest.raises(ValueError, match="differs from the model"):
        export(source, out, "torch_export", report=lambda line: None)
    assert out.read_bytes() == b"from before"
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


MISMATCHES = [
    ("model.onnx", "torch_export", {}, "model.onnx"),
    ("model.pt2", "torch_export", {"int8": True}, "int8"),
    ("model.onnx", "onnx", {"int8": True}, "int8"),
]


@pytest.mark.parametrize(("name", "format", "options", "value"), MISMATCHES)
def test_what_does_not_go_together(source, name, format, options, value, tmp_path):
    """int8 is of a classifier in ONNX."""
    with pytest.raises(ValueError, match=value):
        export(replace(source, outputs=("stage0",)), tmp_path / name, format, **options)
    assert not list(tmp_path.iterdir())


def test_place_that_cannot_be_written_is_refused_before_the_work(source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="model"):
        export(source, tmp_path / "file" / "model.pt2", "torch_export", report=pytest.fail)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_package_is_named(package, source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=package):
        export(source, tmp_path / "model.onnx", "onnx", report=lambda line: None)
