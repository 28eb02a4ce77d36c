"""Files that earlier versions wrote still give the outputs that they gave."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import nn

from soft_vit.linearise.backbone import load_backbone
from soft_vit.weights import ENTRIES, load_index

SAVED = Path(__file__).parents[1] / "data" / "saved"
_spec = importlib.util.spec_from_file_location("make_saved", SAVED / "make.py")
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)

PYRAMID = dict(make.PYRAMID, img_size=make.SIZE)


def overlay(path: Path, name: str = "soft_pico", **options) -> nn.Module:
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=dict(file=str(path)), **options)


def of_folder(path: Path) -> nn.Module:
    return timm.create_model(f"local-dir:{path}", pretrained=True)


def recorded(path: Path) -> nn.Module:
    (entry,) = load_index(path / "index.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFT_VIT_CHECKPOINTS", str(path))
        patch.setitem(ENTRIES, "soft_pico.shapes", replace(entry, tag="shapes"))
        # timm's configuration of this tag has other numbers.
        return timm.create_model("soft_pico.shapes", pretrained=True, num_classes=3, img_size=make.SIZE)


def student(path: Path) -> nn.Module:
    return load_backbone(str(path))


# A file, how it is loaded, and the options that the caller repeats; files of the last four hold none.
FILES = [
    *(
        (f"{version}/{file}", load, {})
        for version in ("0_3", "0_4")
        for file, load in (
            ("run.pth", overlay),
            ("published", recorded),
            ("published/hub", of_folder),
        )
    ),
    ("0_3/run.pth", overlay, PYRAMID),
    ("0_4/run.pth", overlay, PYRAMID),
    ("0_4/labels.pth", overlay, {}),
    ("0_4/converted_mmengine.pth", overlay, {}),
    ("0_4/converted_safetensors.safetensors", overlay, {}),
    ("0_4/student", student, {}),
    ("0_4/swapped", of_folder, {}),
    ("0_4/converted_timm.pth", overlay, dict(PYRAMID, num_classes=3)),
    ("0_4/converted_released.pth", overlay, dict(make.NARROW, num_classes=3, img_size=make.SIZE)),
    *(
        (f"0_4/{stem}.pth", overlay, dict(options, name=name, num_classes=3, img_size=make.SIZE))
        for stem, (name, options) in make.STATES.items()
    ),
]


@pytest.mark.parametrize(("file", "load", "options"), FILES)
def test_outputs_are_those_of_the_version_that_wrote_them(file, load, options):
    stem = Path(file.removesuffix("/hub")).stem
    expected = torch.from_numpy(np.load(SAVED / file[:3] / "expected.npz")[stem])
    with torch.no_grad():
        found = load(SAVED / file, **options).eval()(make.pixels())
    # Another machine orders sums in another way: a few roundings of float32 in each of two dozen layers.
    bound = 100 * torch.finfo(torch.float32).eps * expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)
