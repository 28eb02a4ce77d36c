"""tools/weights/{convert,publish}_checkpoint.py, export.py, and data/make_shapes.py."""

from pathlib import Path

import pytest
import timm
import torch

from soft_vit.models import load_weights


@pytest.fixture
def weights(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    torch.save({"arch": "soft_pico", "state_dict": timm.create_model("soft_pico", num_classes=3).state_dict()}, "a.pth")
    return "a.pth"


def test_convert(tool, mistake, weights, capsys):
    tool("convert_checkpoint")([weights, "b.safetensors", "--to", "safetensors"])
    assert capsys.readouterr().out.splitlines() == [
        "a.pth holds weights of soft_pico in the layout timm.",
        "Left out: arch.",
        "Written: b.safetensors (safetensors, 5.2 MB).",
    ]
    assert load_weights("b.safetensors").keys() == load_weights(weights).keys()
    assert "exists already" in mistake("convert_checkpoint", weights, weights, "--to", "timm")
    assert "a.pth cannot be used" in mistake("convert_checkpoint", weights, "a.pth/b.pth", "--to", "timm")


def test_publish(tool, mistake, weights, capsys):
    arguments = [weights, "out", "--tag", "mine", "--licence", "mit", "--metric", "top1=33", "--hf-dir", "hub"]
    assert "--mean and --std" in mistake("publish_checkpoint", *arguments)
    tool("publish_checkpoint")([*arguments, "--mean", "0.5", "0.5", "0.5", "--std", "0.25", "0.25", "0.25"])
    (file,) = Path("out").glob("soft_pico.mine-????????.safetensors")
    assert capsys.readouterr().out.splitlines() == [
        f"Written: {file} (5.2 MB), out/soft_pico.mine.md, and soft_pico.mine in out/index.json.",
        'Written: hub, which timm.create_model("local-dir:hub", pretrained=True) reads after `import soft_vit`.',
    ]


def test_export(tool, tmp_path, capsys):
    out = tmp_path / "vit.pt2"
    tool("export")(f"--model test_vit --no-pretrained --img-size 64 --format torch_export --out {out}".split())
    printed = capsys.readouterr().out
    assert "5 x 64 x 64: relative error" in printed
    assert f"Written: {out}" in printed
    assert torch.export.load(out).module()(torch.zeros(3, 3, 64, 64)).shape == (3, 1000)


def test_make_shapes(tool, tmp_path, capsys):
    options = "--task coco --train 3 --val 2 --img-size 48 64 --seed 5"
    tool("make_shapes")([str(tmp_path / "tree"), *options.split()])
    assert "5 images" in capsys.readouterr().out
    assert len(list((tmp_path / "tree" / "train2017").iterdir())) == 3
