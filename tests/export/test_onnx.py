"""ONNX files: equal to their model, what they say of themselves, and in int8."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import soft_vit
from soft_vit.export import export, quantization
from soft_vit.export.formats import open_onnx
from soft_vit.export.quantization import check_drop, quantize

onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def full(small, tmp_path_factory) -> Path:
    """Compared with the model when it is written."""
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    lines: list[str] = []
    export(small, path, "onnx", report=lines.append)
    assert sum("relative error" in line for line in lines) >= 2
    return path


def test_equals_eager(small, full):
    run = open_onnx(full)
    for batch in (1, 5, 17):
        images = torch.randn(batch, 3, 64, 64)
        assert (run(images)[0] - small.model(images)).abs().max() <= 1e-4


def test_says_how_to_use_it(small, full):
    # The folder of the code, which stands in traces of its nodes.
    assert str(Path(soft_vit.__file__).parent).encode() not in full.read_bytes()
    file = onnx.load(full)
    metadata = {entry.key: entry.value for entry in file.metadata_props}
    for name in ("input_size", "mean", "std", "classes"):
        assert json.loads(metadata[name]) == list(getattr(small, name))
    assert metadata["model"] == "soft_pico"
    assert [node.name for node in (*file.graph.input, *file.graph.output)] == ["images", "logits"]


@pytest.mark.slow
def test_int8(small, full, tmp_path, monkeypatch):
    """Products with weights alone; files of other classes are compared with each other."""
    monkeypatch.setattr(quantization, "CALIBRATION_IMAGES", 64)
    monkeypatch.setattr(quantization, "TEST_IMAGES", 40)
    path = tmp_path / "int8.onnx"
    assert quantize(full, path, small).startswith("17 of ")
    before, after = (onnx.load(file) for file in (full, path))
    noted, kept = ({entry.key: entry.value for entry in file.metadata_props} for file in (before, after))
    assert noted.items() <= kept.items()
    made_by = {output: node for node in after.graph.node for output in node.output}
    weights = {each.name for each in after.graph.initializer}
    for node in after.graph.node:
        sources = [made_by[name] for name in node.input[:2] if name in made_by]
        if node.op_type in quantization.PRODUCTS and any(x.op_type == "DequantizeLinear" for x in sources):
            assert any(source.input[0] in weights for source in sources)
    assert "Top-1" in check_drop(full, path, small, max_drop=100)
    assert "Both predict the same" in check_drop(full, path, replace(small, classes=()), max_drop=100)
    head = max((w for w in before.graph.initializer if 10 in w.dims), key=lambda w: len(w.raw_data))
    head.raw_data = (-torch.frombuffer(bytearray(head.raw_data), dtype=torch.float32)).numpy().tobytes()
    onnx.save(before, path)
    with pytest.raises(ValueError, match=r"at most 2 points.*of 40 generated images"):
        check_drop(full, path, replace(small, classes=()), max_drop=2)


@pytest.mark.slow
def test_int8_of_a_trained_model(pico, tmp_path):
    lines: list[str] = []
    path = export(pico, tmp_path / "pico.onnx", "onnx", int8=True, max_drop=1.0, report=lines.append)
    assert float(re.search(r"([\d.]+) % in float32", "".join(lines))[1]) > 95
    # Bytes instead of four, and the graph.
    assert path.stat().st_size < 0.4 * 4 * sum(p.numel() for p in pico.model.parameters())
