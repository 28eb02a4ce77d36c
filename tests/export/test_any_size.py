"""ONNX files for images of any size: each equals its model at other sizes, or is not written."""

import pytest
import torch
from torch import nn

from soft_vit.export import ExportModel, export
from soft_vit.export.formats import FORMATS
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.attention.landmarks import window_weights
from soft_vit.models.base import pad_to_multiple

# Averages over windows, whose size the graph must not fix, as rotations and inner models must not.
CASES = [
    ("agent", {}),
    ("nystrom", {}),
    ("nystrom", {"landmarks": "segment"}),
    ("spatial_reduction", {"linear": True}),
    ("soft", {"sampling": "avg", "newton_iters": 2}),
    ("soft", {"max_bottleneck": (3, 3), "newton_iters": 2, "normalize": True}),
    ("ttt", {"rope": True}),
]

# The others divide the map by blocks and windows, or pad it to them.
ONE_SIZE = {"local", "atrous", "sparse", "reformer", "longformer", "bigbird", "synthesizer"}
# ONNX lacks the Cholesky factor. The padding of maps for gated attention units is not captured.
REFUSED = {"onnx": {*ONE_SIZE, "skyformer"}, "torch_export": {*ONE_SIZE, "gau"}}


class Layers(nn.Module):
    """Attentions side by side on patches of 4 x 4 pixels: images to a tuple of their tokens."""

    def __init__(self, cases: list[tuple[str, dict]]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.layers = nn.ModuleList(
            ATTENTIONS[name](16, 2, feat_size=(16, 16), sr_ratio=4, **options) for name, options in cases
        )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=16**-0.5)

    def forward(self, x):
        x = self.patches(x)
        grid = x.shape[2], x.shape[3]
        tokens = x.flatten(2).mT
        return tuple(layer(tokens, grid) for layer in self.layers)


def source_of(cases: list[tuple[str, dict]]) -> ExportModel:
    torch.manual_seed(0)
    model = Layers(cases).eval().requires_grad_(False)
    outputs = tuple(f"{name}{i}" for i, (name, _) in enumerate(cases))
    return ExportModel("layers", model, (3, 64, 64), mean=(0.5,) * 3, std=(0.5,) * 3, outputs=outputs)


@pytest.mark.parametrize(("size", "grid"), [((7, 9), (3, 2)), ((5, 4), (7, 7)), ((16, 16), (4, 4)), ((1, 3), (2, 1))])
def test_window_weights_are_those_of_adaptive_pooling(size, grid):
    maps = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = nn.functional.adaptive_avg_pool2d(maps, grid)
    averages = (maps.flatten(2) @ window_weights(size, grid, maps).mT).unflatten(2, grid)
    torch.testing.assert_close(averages, expected, rtol=1e-12, atol=1e-12)


def assert_equal_at_other_sizes(source, format, path):
    run = FORMATS[format].open(path)
    # Windows that divide the map, odd sides, and more windows than the limit of 7 on a side.
    for batch, height, width in ((1, 64, 64), (2, 96, 128), (3, 101, 95), (1, 300, 77)):
        images = torch.randn(batch, 3, height, width)
        for name, given, expected in zip(source.outputs, run(images), source.model(images), strict=True):
            assert (given - expected).norm() <= 1e-4 * expected.norm(), (name, height, width)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join((case[0], *case[1])))
def test_options_at_other_sizes(case, tmp_path):
    pytest.importorskip("onnxruntime")
    source, path = source_of([case]), tmp_path / "layers.onnx"
    FORMATS["onnx"].write(source, path, any_size=True)
    assert_equal_at_other_sizes(source, "onnx", path)


class Padded(nn.Module):
    """Images filled up to patches of 16 pixels."""

    def forward(self, x):
        return (pad_to_multiple(x, 16),)


@pytest.mark.parametrize("format", FORMATS)
def test_padding_follows_the_size(format, tmp_path):
    pytest.importorskip("onnxruntime")
    source = ExportModel("padded", Padded(), (3, 64, 64), mean=(0.5,) * 3, std=(0.5,) * 3, outputs=("padded",))
    path = tmp_path / f"padded{FORMATS[format].suffix}"
    FORMATS[format].write(source, path, any_size=True)
    assert_equal_at_other_sizes(source, format, path)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_kind_is_right_at_other_sizes_or_refused(format, attention, tmp_path):
    pytest.importorskip("onnxruntime")
    source, path = source_of([(attention, {})]), tmp_path / f"layers{FORMATS[format].suffix}"
    if attention in REFUSED[format]:
        with pytest.raises(ValueError, match=r"any size|--img-size|ONNX"):
            export(source, path, format, any_size=True, report=lambda line: None)
        assert not path.exists()
    else:
        export(source, path, format, any_size=True, report=lambda line: None)
        assert_equal_at_other_sizes(source, format, path)
