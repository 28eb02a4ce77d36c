"""tools/convert_checkpoint.py and tools/publish_checkpoint.py: what they print, and mistakes in one sentence."""

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


def test_convert(tool, weights, capsys):
    tool("convert_checkpoint")([weights, "b.safetensors", "--to", "safetensors"])
    assert capsys.readouterr().out.splitlines() == [
        "a.pth holds weights of soft_pico in the layout timm.",
        "Left out: arch.",
        "Written: b.safetensors (safetensors, 5.2 MB).",
    ]
    assert load_weights("b.safetensors").keys() == load_weights(weights).keys()


def test_publish(tool, weights, capsys):
    normalised = ["--mean", "0.5", "0.5", "0.5", "--std", "0.25", "0.25", "0.25"]
    tool("publish_checkpoint")(
        [weights, "out", "--tag", "mine", "--licence", "mit", "--metric", "top1=33", "--hf-dir", "hub", *normalised]
    )
    (file,) = Path("out").glob("soft_pico.mine-????????.safetensors")
    assert capsys.readouterr().out.splitlines() == [
        f"Written: {file} (5.2 MB), out/soft_pico.mine.md, and soft_pico.mine in out/index.json.",
        'Written: hub, which timm.create_model("local-dir:hub", pretrained=True) reads after `import soft_vit`.',
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("convert_checkpoint", ["none.pth", "b.pth", "--to", "timm"], "There is no checkpoint none.pth"),
        ("convert_checkpoint", ["a.pth", "a.pth", "--to", "timm"], "exists already"),
        ("convert_checkpoint", ["a.pth", "a.pth/b.pth", "--to", "timm"], "a.pth cannot be used"),
        ("publish_checkpoint", ["a.pth", "out", "--tag", "m", "--licence", "mit", "--metric", "x"], "NAME=VALUE"),
        ("publish_checkpoint", ["a.pth", "out", "--tag", "m", "--licence", "mit"], "give --mean and --std"),
        ("publish_checkpoint", ["none.pth", "out", "--tag", "m", "--licence", "mit"], "There is no checkpoint"),
    ],
)
def test_mistake_ends_in_one_sentence(tool, weights, name, arguments, message):
    with pytest.raises(SystemExit) as caught:
        tool(name)(arguments)
    assert caught.value.code.startswith("error: ")
    assert message in caught.value.code
    assert "\n" not in caught.value.code
