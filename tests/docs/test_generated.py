"""Pages, tables, examples and the demo's graph are those of the code."""

import re
import runpy
import shutil
import sys

import numpy as np
import pytest
import torch
from documents import ROOT
from PIL import Image
from safetensors.torch import load_file

from docs.generate.demo import Demo, FashionDemo, TilesDemo
from docs.generate.pages import PAGES, TABLES, generated
from docs.generate.zoo import count_model, counted_name, read_counts
from soft_vit.data import ShapeImages, normalised_batch
from soft_vit.export.formats import open_onnx
from soft_vit.weights import RECORDED_WEIGHTS

# Generated pages, tables and pictures are up to date.


# Every task is drawn, for seconds.
SLOW = ("docs/gym/tasks.md",)


FILES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in (*PAGES, *TABLES)]


@pytest.mark.parametrize("name", FILES)
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


EXAMPLES = [("siglip2_resolutions", ["2"], "4 tokens  soft_vit_linear"), ("naflex_rates", ["6", "3"], "squares ")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments", "line"), EXAMPLES)
def test_example(name, arguments, line, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "docs" / "examples" / f"{name}.py"))
    assert line in capsys.readouterr().out


# The files of the demos compute what the models do.


def tiles(demo: Demo) -> tuple[torch.Tensor, list[int]]:
    samples = list(ShapeImages(4, split="test", scene="tiles"))
    return normalised_batch(samples, demo.mean, demo.std), [sample.label for sample in samples]


def items(demo: Demo) -> tuple[torch.Tensor, list[int]]:
    """The items of the picture, a class a column; the model names a shirt and a pullover wrongly."""
    picture = torch.tensor(np.asarray(Image.open(demo.path.with_suffix(".png")))) / 255
    images = picture.unflatten(1, (10, 28)).unflatten(0, (2, 28)).permute(0, 2, 1, 3).reshape(20, 1, 28, 28)
    return images, [*range(6), 0, *range(7, 10), 0, 1, 6, *range(3, 10)]


@pytest.mark.parametrize(("kind", "load"), [(TilesDemo, tiles), (FashionDemo, items)])
def test_graph_with_the_recorded_weights_is_the_model(kind, load, tmp_path):
    images, labels = load(demo := kind().eval().double())
    for path in (demo.path, demo.weights):
        shutil.copy(path, tmp_path)
    with torch.no_grad():
        logits, *others = demo(images.double())
    for given, expected in zip(open_onnx(tmp_path / demo.path.name)(images), [logits, *others], strict=True):
        # Weights of attention are below 1.
        assert (given - expected).abs().max() < 1e-5 * max(1, expected.abs().max())
    assert logits.argmax(1).tolist() == labels
    # Weights are not stored twice.
    assert demo.path.stat().st_size < demo.weights.stat().st_size / 10
