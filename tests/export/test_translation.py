"""Graphs that are decomposed operator by operator, against the modules that they were captured from."""

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from soft_vit.export import ExportModel, translation
from soft_vit.export.formats import capture, open_onnx, write_onnx
from soft_vit.export.translation import aten, decompose
from soft_vit.export.verified_file import compare


class Composite(nn.Module):
    """Operators that ONNX has no translation of, that write to a tensor, or that have no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x):
        x = nn.functional.dropout2d(x, training=False)
        x = self.norm(x).relu_().movedim(1, -1).flatten(1, 2)
        twice = [(x @ torch.eye(3).mT).square().unflatten(1, (-1, 2)) for _ in range(2)]
        parts = (twice[0] + twice[1]).tensor_split(2, 1)
        return nn.functional.dropout(1 - parts[0] - parts[1], 0.5, training=False).contiguous()


class Overwritten(nn.Module):
    """A view that is written to after its base was made, and a value that is read after it was overwritten."""

    def forward(self, x):
        y = x * 2
        y[:, 0].add_(1)
        z = x + 1
        return y + z.relu_() + z


TABLE = {op: torch.export.default_decompositions()[op] for op in (aten.square.default, aten.eye.default)}


def source_of(module: nn.Module) -> ExportModel:
    return ExportModel("module", module.eval(), (3, 64, 66), mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.mark.parametrize("any_size", [False, True])
def test_one_operator_at_a_time(any_size):
    source = source_of(Composite())
    program = decompose(capture(source, any_size), TABLE)
    names = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert not set(names) & {*TABLE, *translation.COMPOSITE, *translation.NO_EFFECT}
    assert not [op for op in names if getattr(op, "_schema", None) and op._schema.is_mutable]
    # What both terms of a sum are computed by.
    assert names.count(aten.matmul.default) == 1
    images = source.images(3, 64, 66)
    torch.testing.assert_close(program.module()(images), source.model(images))


CASES = [(Composite, translation.COMPOSITE, False), (Composite, (), True), (Overwritten, translation.COMPOSITE, True)]


@pytest.mark.parametrize(("module", "composite", "whole"), CASES, ids=["known", "unknown to ONNX", "overwritten"])
def test_file_equals_the_module(module, composite, whole, tmp_path, monkeypatch):
    """Whatever is not decomposed operator by operator is decomposed as a whole."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    monkeypatch.setattr(translation, "COMPOSITE", composite)
    decompositions = []
    run = ExportedProgram.run_decompositions
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda *a: decompositions.append(a) or run(*a))
    source = source_of(module())
    write_onnx(source, tmp_path / "module.onnx")
    assert bool(decompositions) == whole
    assert max(compare(open_onnx(tmp_path / "module.onnx"), source, [(64, 66)]).values()) <= 1e-5
