"""tools/weights/check_checkpoint.py: what it prints of a file, and its exit code."""

import os
import re

import pytest
import timm
import torch
from crafted import Call
from released import hollow, released_shapes
from safetensors.torch import save_file

from soft_vit.models import identify
from soft_vit.weights import RECORDED_WEIGHTS
from soft_vit.weights.files import INDEX_FILE

SHAPES = INDEX_FILE.parent / "soft_pico.shapes.safetensors"


@pytest.fixture(autouse=True)
def few_families(monkeypatch):
    """Compare a file with some pyramids and three models of other families instead of all."""
    some = {name: size for name, size in identify.PYRAMID_MODELS.items() if name.startswith(("soft", "linear_"))}
    monkeypatch.setattr(identify, "PYRAMID_MODELS", some)
    monkeypatch.setattr(identify, "FAMILY_MODELS", ["pola_pvt_tiny", "mlla_tiny", "care_s0"])


CARE = "of care_s0: 7.*pretrained=True of care_s0.zhouyuan_in1k"
RELEASED = [
    ("SOFT_Tiny_norm.pth", "", {}, "pretrained=True of soft_norm_tiny.fudan_in1k"),
    ("mine.pth", "", {"arch": "soft_norm_tiny"}, "Its notes name the model.*recorded under the name mine.pth"),
    ("MLLA_T.pth", "mlla_tiny", {}, "of mlla_tiny: 24.*pretrained=True of mlla_tiny.leaplab_in1k"),
    pytest.param("CARETrans_S0.pth.tar", "care_s0", {}, CARE, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "model", "content", "printed"), RELEASED)
def test_a_released_file(name, model, content, printed, tool, tmp_path, capsys):
    shapes = released_shapes()
    if model:
        shapes = {key: value.shape for key, value in timm.create_model(model, device="meta").state_dict().items()}
    torch.save({"state_dict": hollow(shapes), **content}, tmp_path / name)
    tool("check_checkpoint")([str(tmp_path / name)])
    assert re.search(printed, capsys.readouterr().out)


REJECTED = [
    pytest.param("SOFT_Large_norm.pth", {}, "soft_norm_large.*soft_tiny or soft_norm_tiny", marks=pytest.mark.slow),
    ("SOFT_Tiny.pth", {"arch": "soft_norm_tiny"}, "of soft_tiny.*soft_norm_tiny"),
    ("mine.pth", {"extra": Call(os.system, "touch executed")}, "could run code"),
    ("mine.pth", {"state_dict": {"conv1.weight": torch.ones(1)}}, r"conv1\.weight"),
    (SHAPES.name, None, r"soft_pico\.shapes"),
]


@pytest.mark.parametrize(("name", "content", "printed"), REJECTED)
def test_rejected(name, content, printed, tool, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        torch.save({"state_dict": hollow(released_shapes()), **content}, name)
    else:
        save_file({"norm.bias": torch.zeros(1)}, name)
    with pytest.raises(SystemExit) as ended:
        tool("check_checkpoint")([name, "nowhere.pth", str(SHAPES)])
    assert ended.value.code == 1
    screen = capsys.readouterr()
    assert re.match(f"error: .*{printed}.*\nerror: .*nowhere.pth.*\n$", screen.err)
    # The last file, which is shipped, is described nevertheless.
    digest = RECORDED_WEIGHTS["soft_pico.shapes"].sha256
    assert re.match(f"{SHAPES}: It holds weights of soft_pico.* 10 classes.* {digest}.*soft_pico.shapes", screen.out)
    assert not (tmp_path / "executed").exists()
