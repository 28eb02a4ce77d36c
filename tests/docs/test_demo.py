"""The file of the start page's demo computes what the model does."""

import shutil

import torch

from docs.generate.demo import GRAPH, WEIGHTS, TilesDemo
from soft_vit.data import ShapeImages, normalised_batch
from soft_vit.export.formats import open_onnx


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
