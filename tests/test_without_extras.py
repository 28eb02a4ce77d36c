"""What works without Triton and MMEngine, in a process that has neither."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NEED_TRAIN = {
    "train": "--help",
    "test": "--help",
    "predict": "--help",
    "export": "--help",
    "analysis/get_flops": "--config=configs/soft_tiny.py",
}
CODE = """
import json, runpy, sys
sys.modules["triton"] = sys.modules["mmengine"] = None
import soft_vit, torch
from soft_vit.ops import soft_attention
said = {"loaded": [name for name, module in sys.modules.items() if module]}
x = torch.ones(1, 1, 4, 2)
soft_attention(x, x, x)
try:
    soft_attention(x, x, x, backend="triton")
except ValueError as error:
    said["triton"] = str(error)
for name, argument in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.argv = [name, argument]
    try:
        runpy.run_path(f"tools/{name}.py", run_name="__main__")
    except SystemExit as end:
        said[name] = end.code
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict:
    words = [word for command in NEED_TRAIN.items() for word in command]
    command = [sys.executable, "-c", CODE, *words]
    root = Path(__file__).parents[1]
    return json.loads(subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout)


def test_importing_the_package_stays_light(said):
    packages = {name.partition(".")[0] for name in said["loaded"]}
    assert not packages & {"mmpretrain", "mmcv", "albumentations", "tensorboard", "cv2"}


def test_eager_needs_no_triton(said):
    assert "package triton" in said["triton"]
    assert "soft_vit.ops.soft.triton.op" in said["loaded"]
    assert "soft_vit.ops.soft.triton.launch" not in said["loaded"]


def test_tools_name_the_extra(said):
    assert all("mmengine" in said[name] and "soft_vit[train]" in said[name] for name in NEED_TRAIN)
