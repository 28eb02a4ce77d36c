"""ONNX files of a trained model: equal to it, what they say of themselves, and in int8."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import soft_vit
from soft_vit.data import CLASSES
from soft_vit.export import ExportModel, export, load_export_model, quantization
from soft_vit.export.formats import open_onnx
from soft_vit.export.quantization import check_drop, quantize
from soft_vit.layers.attention.soft import SoftAttention

onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def pico() -> ExportModel:
    """A trained model that is as accurate with few iterations, each of which has nodes in a graph."""
    source = load_export_model("soft_pico.shapes")
    for module in source.model.modules():
        if isinstance(module, SoftAttention):
            module.options = replace(module.options, newton_iters=2)
    return source


@pytest.fixture(scope="module")
def pico_onnx(pico, tmp_path_factory) -> Path:
    """Compared with the model when it is written; tests/tools/test_weights.py exports by the command line."""
    path = tmp_path_factory.mktemp("onnx") / "pico.onnx"
    lines: list[str] = []
    export(pico, path, "onnx", report=lines.append)
    assert sum("relative error" in line for line in lines) >= 2
    return path


def test_equals_eager(pico, pico_onnx):
    run = open_onnx(pico_onnx)
    for batch in (1, 5, 17):
        images = torch.randn(batch, 3, 64, 64)
        with torch.no_grad():
            assert (run(images)[0] - pico.model(images)).abs().max() <= 1e-4


def test_says_how_to_use_it(pico_onnx):
    # The folder of the code, which stands in traces of its nodes.
    assert str(Path(soft_vit.__file__).parent).encode() not in pico_onnx.read_bytes()
    file = onnx.load(pico_onnx)
    metadata = {entry.key: entry.value for entry in file.metadata_props}
    assert metadata["model"] == "soft_pico.shapes"
    assert json.loads(metadata["classes"]) == list(CLASSES)
    assert json.loads(metadata["input_size"]) == [3, 64, 64]
    assert json.loads(metadata["mean"]) == [0.5] * 3
    assert json.loads(metadata["std"]) == pytest.approx([64 / 255] * 3)
    assert [node.name for node in (*file.graph.input, *file.graph.output)] == ["images", "logits"]


@pytest.fixture(scope="module")
def int8_file(pico, pico_onnx, tmp_path_factory):
    path = tmp_path_factory.mktemp("int8") / "pico.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantization, "CALIBRATION_IMAGES", 64)
        quantize(pico_onnx, path, pico)
    return path


def test_accuracy_stays(pico, pico_onnx, int8_file, monkeypatch):
    monkeypatch.setattr(quantization, "TEST_IMAGES", 150)
    result = check_drop(pico_onnx, int8_file, pico, max_drop=1.0)
    assert float(re.search(r"([\d.]+) % in float32", result)[1]) > 95
    assert int8_file.stat().st_size < 0.6 * pico_onnx.stat().st_size
    # Of other classes, the files are compared with each other.
    monkeypatch.setattr(quantization, "TEST_IMAGES", 40)
    assert "top-1" not in check_drop(pico_onnx, int8_file, replace(pico, classes=()), max_drop=5.0).lower()


def test_only_products_with_weights(pico_onnx, int8_file):
    graph = onnx.load(int8_file).graph
    made_by = {output: node for node in graph.node for output in node.output}
    weights = {each.name for each in graph.initializer}
    quantized = 0
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            sources = [made_by.get(name) for name in node.input[:2]]
            if any(source is not None and source.op_type == "DequantizeLinear" for source in sources):
                quantized += 1
                assert any(source is not None and source.input[0] in weights for source in sources)
    # 14 convolutions, 25 linear layers of the blocks, and the head.
    assert quantized == 40


def test_metadata_stays(pico_onnx, int8_file):
    before, after = ({p.key: p.value for p in onnx.load(file).metadata_props} for file in (pico_onnx, int8_file))
    assert before.items() <= after.items()


def test_loss_is_refused(pico, pico_onnx, tmp_path, monkeypatch):
    model = onnx.load(pico_onnx)
    head = max(
        (w for w in model.graph.initializer if tuple(w.dims) in ((10, 160), (160, 10))), key=lambda w: len(w.raw_data)
    )
    head.raw_data = bytes(len(head.raw_data))
    onnx.save(model, tmp_path / "blind.onnx")
    monkeypatch.setattr(quantization, "TEST_IMAGES", 50)
    with pytest.raises(ValueError, match=r"at most 2 points.*of 50 generated images"):
        check_drop(pico_onnx, tmp_path / "blind.onnx", pico, max_drop=2)
