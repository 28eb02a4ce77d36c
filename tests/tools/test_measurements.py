"""The tools that count and measure."""

import re

import pytest

from soft_vit.data.shape_trees import make_tree
from soft_vit.weights.files import RESOURCES


def test_attention_health_on_images_of_a_folder(tool, tmp_path, capsys):
    make_tree(tmp_path / "tree", "imagefolder", train=1, val=20, size=64)
    data, few = str(tmp_path / "tree" / "val"), ["--num-images", "20", "--num-matrices", "1"]
    tool("attention_health")(["--model", "soft_pico", "--data", data, *few])
    top1 = re.search(r"Top-1 ([\d.]+) %, .* on 20 images", capsys.readouterr().out)
    assert float(top1[1]) > 90, "98 % on all generated images"
    with pytest.raises(SystemExit, match="none of the 1000 classes"):
        tool("attention_health")(["--model", "soft_tiny", "--no-pretrained", "--data", data, *few])


# A convolutional model takes no img_size.
@pytest.mark.parametrize(
    ("arguments", "name", "part"),
    [
        ("soft_pico", "soft_pico", "stages"),
        ("vit_tiny_patch16_224", "vit_tiny_patch16_224", "blocks"),
        ("resnet18", "resnet18", "layer1"),
        (f"--config {RESOURCES}/configs/soft_tiny.py", "soft_tiny", "stages"),
    ],
)
def test_get_flops(arguments, name, part, tool, capsys):
    tool("get_flops")([*arguments.split(), "--img-size", "64", "96", "--depth", "1"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}, 64 x 96, torch ")
    assert part in printed
