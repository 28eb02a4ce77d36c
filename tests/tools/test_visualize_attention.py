"""The picture of where a token looks, from the command line."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def photo(tmp_path) -> str:
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)).save(path)
    return str(path)


def test_png_beside_what_it_shows(tool, photo, tmp_path, capsys):
    out = tmp_path / "new" / "row.png"
    tool("visualize_attention")(
        [photo, "--model", "soft_pico", "--img-size", "64", "--stage", "3", "--query", "1", "2", "--out", str(out)]
    )
    assert "soft_pico, random weights: soft, stage 3, query 1 2" in capsys.readouterr().out
    assert Image.open(out).width > 500


def test_recorded_weights(tool, photo, tmp_path, capsys):
    out = tmp_path / "row.png"
    tool("visualize_attention")([photo, "--model", "soft_pico", "--pretrained", "--stage", "2", "--out", str(out)])
    assert "soft_pico.shapes, pretrained: soft, stage 2, query 4 4" in capsys.readouterr().out
    assert out.is_file()


@pytest.mark.parametrize(
    ("image", "message"), [("missing.png", "There is no image missing.png"), (__file__, f"{__file__} cannot be read")]
)
def test_a_file_that_is_no_image_is_named(tool, image, message, capsys):
    with pytest.raises(SystemExit) as end:
        tool("visualize_attention")([image, "--model", "soft_pico", "--img-size", "64"])
    assert end.value.code == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "resnet18"], "resnet18 is not a pyramid"),
        (["--model", "soft_pico", "--stage", "5"], "stage is 5"),
        (["--model", "soft_pico", "--checkpoint", "none.pth"], "none.pth"),
        (["--model", "soft_pico", "--checkpoint", "none.pth", "--pretrained"], "not allowed with argument"),
        (["--model", "soft_norm_pico", "--pretrained"], "No pretrained weights exist for soft_norm_pico"),
        (["--model", "soft_pico", "--device", "gpu"], "There is no device 'gpu'"),
    ],
)
def test_mistake_ends_in_one_sentence(tool, photo, arguments, message, capsys):
    with pytest.raises(SystemExit):
        tool("visualize_attention")([photo, "--img-size", "64", *arguments])
    error = capsys.readouterr().err
    assert "error: " in error
    assert message in error
    assert "Traceback" not in error
