"""Pages, tables, examples and the demo's graph are those of the code."""

import re
import runpy
import shutil
import sys

import pytest
import torch
from documents import ROOT
from safetensors.torch import load_file

from docs.generate.demo import GRAPH, WEIGHTS, TilesDemo
from docs.generate.pages import PAGES, TABLES, generated
from docs.generate.zoo import count_model, counted_name, read_counts
from soft_vit.data import ShapeImages, normalised_batch
from soft_vit.export.formats import open_onnx
from soft_vit.weights import RECORDED_WEIGHTS

# Generated pages, tables and pictures are up to date.


# Every task is drawn, for seconds.
SLOW = ("docs/gym/tasks.md",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in (*PAGES, *TABLES)]
)
def test_file_is_what_is_generated(name):
    assert generated(name) == (ROOT / name).read_text(), "run python -m docs.generate"


COUNTS = read_counts(ROOT / "docs" / "zoo.csv")


def test_counts_are_those_of_the_models():
    assert COUNTS.keys() == set(map(counted_name, RECORDED_WEIGHTS.values()))
    for name in ("soft_pico.shapes", "soft_plus_pico.tiles"):
        entry = RECORDED_WEIGHTS[name]
        counts = COUNTS[counted_name(entry)]
        assert count_model(entry) == counts
        tensors = load_file(ROOT / "checkpoints" / entry.file)
        # BatchNorm's statistics are no parameters.
        learned = [tensor for key, tensor in tensors.items() if not re.search("running|num_batches", key)]
        assert sum(tensor.numel() for tensor in learned) == int(counts["params"])


# Examples run.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [("siglip2_resolutions", ["2"], "4 tokens  soft_vit_linear"), ("naflex_rates", ["6", "3"], "squares ")],
)
def test_example(name, arguments, line, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "docs" / "examples" / f"{name}.py"))
    assert line in capsys.readouterr().out


# The file of the start page's demo computes what the model does.


def test_graph_with_the_recorded_weights_is_the_model(tmp_path):
    for path in (GRAPH, WEIGHTS):
        shutil.copy(path, tmp_path)
    demo = TilesDemo().eval().double()
    samples = list(ShapeImages(4, split="test", scene="tiles"))
    images = normalised_batch(samples, demo.model.pretrained_cfg["mean"], demo.model.pretrained_cfg["std"])
    with torch.no_grad():
        logits, *others = demo(images.double())
    for given, expected in zip(open_onnx(tmp_path / GRAPH.name)(images), [logits, *others], strict=True):
        # Weights of attention are below 1.
        assert (given - expected).abs().max() < 1e-5 * max(1, expected.abs().max())
    assert logits.argmax(1).tolist() == [sample.label for sample in samples]
    # Weights are not stored twice.
    assert GRAPH.stat().st_size < WEIGHTS.stat().st_size / 5
