"""tools/analysis/attention_health.py and get_flops.py."""

import re

import pytest
from PIL import Image

from soft_vit.data import CLASSES, ShapeImages
from soft_vit.weights.files import RESOURCES


def test_attention_health_on_images_of_a_folder(tool, tmp_path, capsys):
    for number, sample in enumerate(ShapeImages(20, "val")):
        (tmp_path / CLASSES[sample.label]).mkdir(exist_ok=True)
        Image.fromarray(sample.image).save(tmp_path / CLASSES[sample.label] / f"{number}.png")
    data, few = str(tmp_path), ["--num-images", "20", "--num-matrices", "1"]
    tool("attention_health")(["--model", "soft_pico", "--data", data, *few])
    top1 = re.search(r"Top-1 ([\d.]+) %, .* on 20 images", capsys.readouterr().out)
    assert float(top1[1]) > 90, "98 % on all generated images"
    with pytest.raises(SystemExit, match="1000 classes"):
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
