"""tools/get_flops.py: the table, and one sentence for a mistake."""

import re

import pytest


# A convolutional model takes no img_size.
@pytest.mark.parametrize(
    ("name", "part"), [("soft_pico", "stages"), ("vit_tiny_patch16_224", "blocks"), ("resnet18", "layer1")]
)
def test_table(name, part, tool, capsys):
    tool("get_flops")([name, "--shape", "64", "96", "--depth", "1"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}, 64 x 96, torch ")
    assert part in printed


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("soft_pica", r"timm has no model 'soft_pica'; did you mean soft_pico( or \w+)*\?"),
        ("xyzzy_1", r"timm has no model 'xyzzy_1'; choose a name of timm\.list_models\(\)\."),
        ("nowhere.py", r".*nowhere\.py.*"),
    ],
)
def test_mistakes(name, said, tool, capsys):
    with pytest.raises(SystemExit) as ended:
        tool("get_flops")([name])
    assert ended.value.code == 1
    assert re.fullmatch(f"error: {said}", capsys.readouterr().err.strip())
