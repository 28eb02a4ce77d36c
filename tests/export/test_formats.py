"""Files in all formats: equal to their model, at any size, of every family, in int8."""

import json
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import timm
import torch
from models.zoo.families import SMALL
from PIL import Image
from timm.data import create_transform
from torch import nn

import soft_vit
from soft_vit.data import CLASSES
from soft_vit.export import ExportModel, export, load_export_model, quantization
from soft_vit.export.formats import FORMATS, METADATA_FILE
from soft_vit.export.quantization import check_drop, quantize
from soft_vit.layers import ATTENTIONS
from soft_vit.models import model_name
from soft_vit.models.base import pad_to_multiple
from soft_vit.ops.landmarks import window_weights
from soft_vit.predict import load_predictor
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.spec import USABLE, ModelSpec

# Every format against the model, and what the files say of themselves.


# The folder of the code, which stands in traces of its nodes.
PACKAGE = str(Path(soft_vit.__file__).parent).encode()


# Only torch has both stable sorting and a Cholesky factor.
CANNOT = {"reformer": "sort", "skyformer": "cholesky"}
# A package of each format that not all environments have.
PACKAGES = {"openvino": "openvino", "executorch": "executorch", "litert": "litert_torch", "coreml": "coremltools"}
ANY_SIZE = ("onnx", "torch_export")


def source_of(name: str, img_size: int = 64, **options) -> ExportModel:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, img_size=img_size, **options).eval().requires_grad_(False)
    return ExportModel(name, model, (3, img_size, img_size), mean=(0.5,) * 3, std=(0.25,) * 3)


def silent(line: str) -> None:
    pass


@pytest.mark.slow
def test_torch_export_at_any_size(small, tmp_path):
    """A small model, because tests/models captures whole ones; here it is the file."""
    lines: list[str] = []
    path = export(small, tmp_path / "model.pt2", "torch_export", any_size=True, report=lines.append)
    shapes = {line.split(":")[0].strip() for line in lines if ": relative error" in line}
    assert {"1 x 64 x 64", "5 x 101 x 64", "1 x 64 x 197"} <= shapes
    with zipfile.ZipFile(path) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(METADATA_FILE))
        assert json.loads(archive.read(metadata)) == small.metadata()
        assert not [name for name in archive.namelist() if PACKAGE in archive.read(name)]


def test_features():
    source = load_export_model("soft_pico", pretrained=False, img_size=(96, 64), stages=[-1, 1])
    assert (source.input_size, source.outputs, source.classes) == ((3, 96, 64), ("stage1", "stage3"), ())
    assert [tuple(each.shape) for each in source.model(torch.randn(2, 3, 96, 64))] == [(2, 64, 12, 8), (2, 160, 3, 2)]
    with pytest.raises(ValueError, match="4"):
        load_export_model("soft_pico", pretrained=False, img_size=96, stages=[4])


CONFIGURED = [
    {"model_name": "soft_pico", "img_size": 64},
    {"model_name": "linear_vit_tiny_patch16", "img_size": 96, "in_chans": 1, "depth": 1},
    # timm's convolutional models take no img_size.
    {"model_name": "test_resnet", "img_size": None},
]


@pytest.mark.parametrize("model", CONFIGURED, ids=["pyramid", "ViT", "convolutions"])
@pytest.mark.parametrize("several", [False, True], ids=["one label", "several labels"])
def test_config_with_its_checkpoint(several, model, tmp_path):
    """The images and the task are those of the training, not those of timm's configuration of the model."""
    config, side = tmp_path / "config.py", model["img_size"] or 64
    own = f"image_size = {side}\nmodel = dict(**{model})\n"
    config.write_text(f"_base_ = 'configs/demo/soft_pico_{'labels' if several else 'shapes'}.py'\n{own}")
    weights = timm.create_model(num_classes=10, **model).state_dict()
    torch.save({"state_dict": weights, "meta": {"dataset_meta": {"classes": CLASSES}}}, tmp_path / "weights.pth")
    source = load_export_model(config=config, checkpoint=tmp_path / "weights.pth")
    assert source.name == model["model_name"]
    assert source.classes == CLASSES
    assert json.loads(source.metadata()["multi_label"]) == several
    assert source.input_size == (model.get("in_chans", 3), side, side)
    assert source.std == pytest.approx((64 / 255,) * 3, abs=1e-6)


@pytest.mark.parametrize("img_size", [None, 96])
@pytest.mark.parametrize("crop", [None, dict(crop_pct=0.7, interpolation="bilinear", crop_mode="squash")], ids=str)
def test_metadata_prepare_images_as_the_predictor_does(crop, img_size, tmp_path):
    """Those of a timm model whose weights note their crop, and of a config with another one."""
    subject = {"model": "soft_pico.shapes", "img_size": img_size}
    if crop:
        config = tmp_path / "config.py"
        pipeline = [dict(type="TimmEvalCrop", img_size=64, **crop), dict(type="PackInputs")]
        config.write_text(
            f"_base_ = {str(RESOURCES / 'configs/demo/soft_pico_shapes.py')!r}\n"
            f"test_dataloader = dict(dataset=dict(pipeline={pipeline}))\n"
        )
        weights = RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors"
        subject = {"config": config, "checkpoint": weights, "img_size": img_size}
    source = load_export_model(**subject)
    texts = ("interpolation", "crop_mode")
    metadata = {key: value for key, value in source.metadata().items() if key in USABLE}
    told = {key: value if key in texts else json.loads(value) for key, value in metadata.items()}
    image = Image.fromarray(torch.randint(256, (90, 130, 3), dtype=torch.uint8).numpy())
    scores = source.model(create_transform(**told)(image)[None]).softmax(1)
    (expected,) = load_predictor(**subject, device="cpu", topk=10)([image])
    torch.testing.assert_close(scores[0].sort(descending=True)[0], torch.tensor(expected.scores), atol=1e-5, rtol=0)


def test_subject_of_a_checkpoint_says_how_its_images_were(pico, tmp_path):
    """A recorded file under another name, of a model that is known with other images."""
    shutil.copy(RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors", tmp_path / "a.safetensors")
    source = load_export_model("soft_pico", checkpoint=tmp_path / "a.safetensors")
    assert source.metadata() == {**pico.metadata(), "model": "soft_pico"}
    assert source.notes == ()


# ONNX files for images of any size: each equals its model at other sizes, or is not written.


# Averages over windows, whose size the graph must not fix, as rotations and inner models must not.
CASES = [("nystrom", {"landmarks": "segment"}), ("spatial_reduction", {"linear": True})]
CASES += [("soft", {"sampling": "avg", "newton_iters": 2})]
CASES += [("soft", {"max_bottleneck": (3, 3), "newton_iters": 2, "normalize_rows": True}), ("ttt", {"rope": True})]

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


def source_of_any_size(cases: list[tuple[str, dict]]) -> ExportModel:
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


class Padded(nn.Module):
    """Images filled up to patches of 16 pixels."""

    def forward(self, x):
        return (pad_to_multiple(x, 16),)


@pytest.mark.parametrize("format", ANY_SIZE)
def test_padding_follows_the_size(format, tmp_path):
    pytest.importorskip("onnxruntime")
    source = ExportModel("padded", Padded(), (3, 64, 64), mean=(0.5,) * 3, std=(0.5,) * 3, outputs=("padded",))
    path = tmp_path / f"padded{FORMATS[format].suffix}"
    FORMATS[format].write(source, path, any_size=True)
    assert_equal_at_other_sizes(source, format, path)
    if format == "onnx":
        file = pytest.importorskip("onnx").load(path)
        assert axes_of(file)["images"] == ["batch", 3, "height", "width"]
        assert axes_of(file)["padded"][0] == "batch"


OTHER_SIZES = [("onnx", case) for case in CASES] + [(format, (kind, {})) for format in ANY_SIZE for kind in ATTENTIONS]
NAMES = ["-".join((format, kind, *options)) for format, (kind, options) in OTHER_SIZES]


@pytest.mark.slow
@pytest.mark.parametrize(("format", "case"), OTHER_SIZES, ids=NAMES)
def test_every_kind_is_right_at_other_sizes_or_refused(format, case, tmp_path):
    pytest.importorskip("onnxruntime")
    source, path = source_of_any_size([case]), tmp_path / f"layers{FORMATS[format].suffix}"
    if case[0] in REFUSED[format]:
        with pytest.raises(ValueError, match=r"any size|--img-size|onnx"):
            export(source, path, format, any_size=True, report=silent)
        assert not path.exists()
    else:
        export(source, path, format, any_size=True, report=silent)
        assert_equal_at_other_sizes(source, format, path)


# ONNX files: equal to their model, what they say of themselves, and in int8.


@pytest.fixture(scope="module")
def onnx() -> ModuleType:
    return pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def full(small, onnx, tmp_path_factory) -> Path:
    """Compared with the model when it is written."""
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    lines: list[str] = []
    export(small, path, "onnx", report=lines.append)
    assert sum("relative error" in line for line in lines) >= 2
    return path


def axes_of(file) -> dict[str, list]:
    """The axes of each input and output, a name where the size is free."""
    nodes = (*file.graph.input, *file.graph.output)
    return {node.name: [d.dim_param or d.dim_value for d in node.type.tensor_type.shape.dim] for node in nodes}


def test_says_how_to_use_it(small, full, onnx):
    # The folder of the code, which stands in traces of its nodes.
    assert str(Path(soft_vit.__file__).parent).encode() not in full.read_bytes()
    file = onnx.load(full)
    metadata = {entry.key: entry.value for entry in file.metadata_props}
    for name in ("input_size", "mean", "std", "classes"):
        assert json.loads(metadata[name]) == list(getattr(small, name))
    assert metadata["model"] == "soft_pico"
    assert axes_of(file) == {"images": ["batch", 3, 64, 64], "logits": ["batch", 10]}


@pytest.mark.slow
def test_int8(small, full, onnx, tmp_path, monkeypatch):
    """Weighted products without large depthwise kernels alone; files of other classes are compared with each other."""
    monkeypatch.setattr(quantization, "CALIBRATION_IMAGES", 64)
    monkeypatch.setattr(quantization, "TEST_IMAGES", 40)
    path = tmp_path / "int8.onnx"
    assert quantize(full, path, small).startswith("16 of ")
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
    several = replace(small, spec=ModelSpec().with_classes((), multi_label=True))
    assert "F1 of the labels" in check_drop(full, path, several, max_drop=100)
    head = max((w for w in before.graph.initializer if 10 in w.dims), key=lambda w: len(w.raw_data))
    head.raw_data = (-torch.frombuffer(bytearray(head.raw_data), dtype=torch.float32)).numpy().tobytes()
    onnx.save(before, path)
    with pytest.raises(ValueError, match=r"at most 2 points.*of 40 generated images"):
        check_drop(full, path, replace(small, classes=()), max_drop=2)


@pytest.mark.slow
@pytest.mark.parametrize("format", quantization.QUANTIZERS)
def test_int8_of_a_trained_model(format, pico, onnx, tmp_path):
    pytest.importorskip({"openvino": "nncf"}.get(format, "onnxruntime"))
    lines: list[str] = []
    path = tmp_path / f"pico{FORMATS[format].suffix}"
    export(pico, path, format, int8=True, max_drop=1.0, report=lines.append)
    assert float(re.search(r"([\d.]+) % in float32", "".join(lines))[1]) > 95
    assert {file.stem for file in tmp_path.iterdir()} == {"pico"}
    # A byte instead of four, and the graph.
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * sum(p.numel() for p in pico.model.parameters())


# A pyramid of each attention and a small model of each family in every format, against the model.


# Windows of Swin are cut for one size; DeiT takes multiples of 16 alone.
ONE_SIZE_ZOO = ("inline_swin", "pola_swin", "flatten_swin", "inline_deit")
MODELS = {f"{kind} pyramid": (model_name(kind, "pico"), {}) for kind in ATTENTIONS} | SMALL


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("key", MODELS)
def test_every_model(key, format, tmp_path):
    pytest.importorskip(PACKAGES.get(format, "torch"))
    name, small = MODELS[key]
    source, path = source_of(name, **small), tmp_path / f"model{FORMATS[format].suffix}"
    if (lacking := CANNOT.get(key.removesuffix(" pyramid"))) and format != "torch_export":
        with pytest.raises(ValueError, match=lacking) as refused:
            export(source, path, format, report=silent)
        assert str(refused.value).isprintable()
    else:
        any_size = key in SMALL and key not in ONE_SIZE_ZOO and format in ANY_SIZE
        export(source, path, format, any_size=any_size, report=silent)
