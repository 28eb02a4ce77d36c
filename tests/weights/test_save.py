"""Conversion between all layouts, bit for bit, and refused files."""

import io
from pathlib import Path

import pytest
import timm
import torch
from released import released_shapes
from safetensors.torch import load_file

from soft_vit.models import PYRAMID_SIZES, PyramidViT
from soft_vit.weights.load import load_into
from soft_vit.weights.publish import _pretrained_cfg
from soft_vit.weights.save import LAYOUTS, convert, read_trained_file, written
from soft_vit.weights.spec import NOTES_KEY

FC = "stages.1.blocks.0.mlp.fc1.weight"
SUFFIX = {layout: ".safetensors" if layout == "safetensors" else ".pth" for layout in LAYOUTS}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


def test_released_survives_every_layout(averaged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {name: name for name in released_shapes(PYRAMID_SIZES["pico"]["depths"])}
    weights = {released: averaged[own] for own, released in PyramidViT.adapter.from_released(names).items()}
    torch.save({"arch": "soft_pico", "state_dict": weights, "optimizer": {}}, "released.pth")
    source = "released.pth"
    for i, layout in enumerate([*LAYOUTS, *reversed(LAYOUTS)]):
        target = f"{i}{SUFFIX[layout]}"
        convert(source, target, layout, model="soft_pico")
        source = target
    assert same(torch.load(source, weights_only=True)["state_dict"], weights)


@pytest.mark.parametrize("layout", ["mmengine", "timm"])
@pytest.mark.parametrize(("weights", "taken"), [(None, "averaged"), ("ema", "averaged"), ("plain", "plain")])
def test_choice_of_weights(weights, taken, layout, checkpoint, averaged, plain, tmp_path):
    if layout == "timm":
        checkpoint = tmp_path / "a.pth"
        # As timm's training script notes a model that is named with its tag.
        arch = {"arch": "soft_pico.shapes", "epoch": 3}
        torch.save({**arch, "state_dict": plain, "state_dict_ema": averaged}, checkpoint)
        load_into(timm.create_model("soft_pico", num_classes=10, img_size=64), checkpoint, "strict")
    file = read_trained_file(checkpoint, weights)
    assert (file.model, file.layout) == ("soft_pico", layout)
    target = tmp_path / "out.safetensors"
    sentences = convert(checkpoint, target, "safetensors", weights=weights)
    assert same(load_file(target), {"averaged": averaged, "plain": plain}[taken])
    assert f"the {taken} ones" in sentences[1]
    left_out = ("epoch",) if layout == "timm" else ("optimizer", "message_hub", "param_schedulers", "ema_state_dict")
    assert all(part in sentences[2] for part in left_out)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_notes_are_kept_or_options_named(layout, checkpoint, tmp_path):
    target = tmp_path / f"out{SUFFIX[layout]}"
    sentences = convert(checkpoint, target, layout)
    before, after = read_trained_file(checkpoint), read_trained_file(target, model="soft_pico")
    kept = layout in ("mmengine", "safetensors")
    assert (after.spec == before.spec) == kept
    assert any("newton_iters=12" in sentence for sentence in sentences) != kept


@pytest.fixture(scope="module")
def refused_files(averaged, tmp_path_factory) -> Path:
    """Return a folder with files that are refused, and one of bare weights; tests must not change it."""
    folder = tmp_path_factory.mktemp("refused")
    contents = {
        "empty": {"state_dict": {}},
        "number": {**averaged, "head.weight": torch.tensor(1.0)},
        "integers": {**averaged, FC: averaged[FC].to(torch.int8)},
        "sparse": {**averaged, FC: averaged[FC].to_sparse()},
        "resnet": {"conv1.weight": torch.zeros(3)},
        "bare": averaged,
        "averaged": {"state_dict_ema": averaged},
        "detector": {"state_dict": {f"detector.backbone.body.{name}": x for name, x in averaged.items()}},
        "infinite": {**averaged, "head.bias": torch.full((10,), float("nan"))},
    }
    for name, content in contents.items():
        torch.save(content, folder / f"{name}.pth")
    return folder


MISTAKES = [
    ({"target": "out.pth", "layout": "safetensors"}, r"\.safetensors .*out\.pth"),
    ({"target": "resnet.pth"}, "resnet.pth"),
    ({"model": "soft_tiny"}, "must be soft_pico, .*, got soft_tiny"),
    ({"source": "bare.pth"}, "--model.*check_checkpoint"),
    ({"source": "bare.pth", "model": "soft_tiny"}, "must fit soft_tiny"),
    ({"source": "bare.pth", "model": "soft_pico", "weights": "ema"}, "must hold ema weights"),
    ({"source": "averaged.pth", "model": "soft_pico", "weights": "plain"}, "must hold plain weights"),
    ({"source": "resnet.pth", "model": "soft_pico"}, "must fit soft_pico"),
    ({"source": "infinite.pth", "model": "soft_pico"}, "must be finite"),
    ({"source": "detector.pth", "model": "soft_pico"}, "got a detector or segmentor"),
    ({"source": "empty.pth", "model": "soft_pico"}, r"empty\.pth must hold a state dict"),
    ({"source": "integers.pth", "model": "soft_pico"}, f"{FC} in torch.int8"),
    ({"source": "sparse.pth", "model": "soft_pico"}, f"{FC} in torch.float32"),
    ({"source": "number.pth", "model": "soft_pico"}, r"head.weight with \(\)"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=str)
def test_mistakes(options, message, checkpoint, refused_files, monkeypatch):
    monkeypatch.chdir(refused_files)
    before = sorted(refused_files.iterdir())
    arguments = {"source": checkpoint, "target": "out.pth", "layout": "timm", **options}
    with pytest.raises(ValueError, match=message) as refused:
        convert(**arguments)
    assert "\n" not in str(refused.value)
    assert sorted(refused_files.iterdir()) == before


@pytest.mark.parametrize("name", ["inline_pvt_tiny", "inline_swin_tiny", "inline_deit_tiny", "mlla_tiny"])
def test_weights_of_another_image_size_are_not_resampled(name, tmp_path):
    usual, model = (timm.create_model(name, device="meta", img_size=size) for size in (224, (64, 96)))
    before, weights = usual.state_dict(), {}
    for key, value in model.state_dict().items():
        small = value.shape != before[key].shape
        weights[key] = torch.randn(value.shape) if small else torch.zeros(()).expand(value.shape)
    meta = {NOTES_KEY: {"model": name, "options": {"img_size": [64, 96]}}}
    torch.save({"state_dict": weights, "meta": meta}, tmp_path / "a.pth")
    file = read_trained_file(tmp_path / "a.pth")
    assert (file.model, file.layout) == (name, "mmengine")
    assert same(file.weights, weights)
    released = torch.load(io.BytesIO(written(file, "released")), weights_only=True)["model"]
    assert {key: value.shape for key, value in released.items()} == {
        key: value.shape for key, value in model.to_released(model.state_dict()).items()
    }
    # Tables in released files are left out, and computed when such a file is written.
    for table in (value for key, value in released.items() if key.endswith("rope.rotations")):
        torch.testing.assert_close(table.square().sum(-1), torch.ones(table.shape[:-1]))
    cfg = _pretrained_cfg(file, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert (cfg["input_size"], cfg.get("pool_size")) == ((3, 64, 96), None if "deit" in name else (2, 3))
