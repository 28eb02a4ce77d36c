"""What the wheel carries, and that it works without the repository: with and without Triton and MMEngine."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("soft_vit", "configs", "checkpoints", "tools", "requirements", "setup.py", "pyproject.toml", "MANIFEST.in")
SOURCES += ("README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "model-index.yml")
WEIGHTS = [f"checkpoints/soft_{name}.safetensors" for name in ("pico.shapes", "plus_pico.tiles", "plus_pico.fashion")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Made from the source archive, as `python -m build` does."""
    folder = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, folder / name)
    (folder / "checkpoints" / "SOFT_Tiny.pth").write_bytes(b"what a user put there")
    code = (
        "import os, shutil, setuptools.build_meta as build\n"
        "archive = build.build_sdist('dist')\n"
        "shutil.unpack_archive(f'dist/{archive}', 'unpacked')\n"
        "os.chdir(f'unpacked/{archive.removesuffix(\".tar.gz\")}')\n"
        "build.build_wheel('../../dist')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    return next((folder / "dist").glob("*.whl"))


def test_carries_what_lies_beside_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    configs = [path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.py")]
    tools = [path.relative_to(ROOT) for path in (ROOT / "tools").rglob("*") if path.suffix in (".py", ".sh")]
    assert len({path.parent for path in tools}) > 1
    shipped = ["checkpoints/index.json", "checkpoints/README.md", *WEIGHTS]
    expected = {f"soft_vit/.mim/{path}" for path in [*configs, *tools, *shipped, "model-index.yml"]}
    assert {name for name in names if ".mim" in name} == expected
    package = [path.relative_to(ROOT) for path in (ROOT / "soft_vit").rglob("*") if path.is_file()]
    package = {str(path) for path in package if "__pycache__" not in path.parts}
    assert {name for name in names if ".dist-info/" not in name} - expected == package


NEED_TRAIN = {"train": "--help", "test": "--help", "predict": "--help", "export": "--help"}
NEED_TRAIN |= {"analysis/get_flops": "--config=configs/soft_tiny.py"}
WITHOUT_EXTRAS = """
import json, pathlib, runpy, sys
sys.modules["triton"] = sys.modules["mmengine"] = None
import soft_vit, timm, torch
from soft_vit.ops import soft_attention
from soft_vit.weights import WeightsError
said = {"file": soft_vit.__file__, "loaded": [name for name, module in sys.modules.items() if module]}
model = timm.create_model("soft_pico.shapes", pretrained=True).eval()
said["circle"] = [*model(torch.zeros(1, 3, 64, 64)).shape, model.pretrained_cfg["label_names"][0]]
try:
    timm.create_model("soft_tiny", pretrained=True)
except WeightsError as error:
    said["unreachable"] = str(error)
x = torch.ones(1, 1, 4, 2)
soft_attention(x, x, x)
try:
    soft_attention(x, x, x, backend="triton")
except ValueError as error:
    said["triton"] = str(error)
tools = pathlib.Path(soft_vit.__file__).parent / ".mim" / "tools"
for name, argument in json.loads(sys.argv[1]).items():
    sys.argv = [name, argument]
    try:
        runpy.run_path(str(tools / f"{name}.py"), run_name="__main__")
    except SystemExit as end:
        said[name] = end.code
print(json.dumps(said))
"""
WITH_MMENGINE = """
import pathlib, mmpretrain, runpy, sys
# Exports need no packages of detection.
sys.modules["faster_coco_eval"] = None
import soft_vit.engine, soft_vit.export
assert "soft_pico.shapes" in mmpretrain.list_models("soft_"), mmpretrain.list_models()
assert soft_vit.engine.resolve("configs/demo/soft_pico_shapes.py").model.model_name == "soft_pico"
resources = pathlib.Path(soft_vit.__file__).parent / ".mim"
tool = runpy.run_path(str(resources / "tools" / "weights" / "check_checkpoint.py"))["main"]
tool([str(resources / "checkpoints" / "soft_pico.shapes.safetensors")])
"""


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """Return a function that runs code in a process that has the wheel alone, and no network; it returns the output."""
    target, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("elsewhere")
    # A wheel without compiled code is installed by unpacking it.
    zipfile.ZipFile(wheel).extractall(target)
    # A closed port in the place of the network.
    environment = {**os.environ, "PYTHONPATH": str(target), "HTTPS_PROXY": "http://127.0.0.1:9", "TORCH_HOME": "hub"}
    environment.pop("SOFT_VIT_CHECKPOINTS", None)

    def run(code: str, *arguments: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    return run


def test_works_without_extras_and_the_repository(run):
    said = json.loads(run(WITHOUT_EXTRAS, json.dumps(NEED_TRAIN)))
    assert not Path(said["file"]).is_relative_to(ROOT)
    # Importing the package stays light.
    packages = {name.partition(".")[0] for name in said["loaded"]}
    assert not packages & {"mmpretrain", "mmcv", "albumentations", "tensorboard", "cv2"}
    assert said["circle"] == [1, 10, "circle"]
    assert "hub/checkpoints/SOFT_Tiny.pth" in said["unreachable"]
    assert "package triton" in said["triton"]
    assert "soft_vit.ops.soft.triton.op" in said["loaded"]
    assert "soft_vit.ops.soft.triton.launch" not in said["loaded"]
    assert all("mmengine" in said[name] and "soft_vit[train]" in said[name] for name in NEED_TRAIN)


@pytest.mark.slow
def test_works_with_mmengine(run):
    """Nearly all of its time is the import of mmpretrain."""
    assert "pretrained=True reads it for soft_pico.shapes." in run(WITH_MMENGINE)
