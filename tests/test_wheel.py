"""The wheel works without the repository: what it carries, and the shipped weights in a folder of their own."""

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
WEIGHTS = ("checkpoints/soft_pico.shapes.safetensors", "checkpoints/soft_plus_pico.tiles.safetensors")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Made from the source archive, as `python -m build` does."""
    folder = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, folder / name)
    (folder / "checkpoints" / "SOFT_Tiny.pth").write_bytes(b"what a user put there")
    for what, place in (("sdist", folder), ("wheel", folder / "unpacked")):
        if what == "wheel":
            shutil.unpack_archive(next((folder / "dist").glob("*.tar.gz")), place)
            place = next(place.iterdir())
        code = f"import setuptools.build_meta as b; b.build_{what}({str(folder / 'dist')!r})"
        subprocess.run([sys.executable, "-c", code], cwd=place, check=True, capture_output=True)
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


USE = """
import pathlib, timm, soft_vit, torch
from soft_vit.weights import WeightsError
assert pathlib.Path(soft_vit.__file__).is_relative_to({target!r}), soft_vit.__file__
model = timm.create_model("soft_pico.shapes", pretrained=True).eval()
print(model(torch.zeros(1, 3, 64, 64)).shape, model.pretrained_cfg["label_names"][0])
try:
    timm.create_model("soft_tiny", pretrained=True)
except WeightsError as error:
    print(error)
import mmpretrain, soft_vit.engine
assert "soft_pico.shapes" in mmpretrain.list_models("soft_"), mmpretrain.list_models()
assert soft_vit.engine.resolve("configs/demo/soft_pico_shapes.py").model.model_name == "soft_pico"
import runpy
resources = pathlib.Path({target!r}, "soft_vit", ".mim")
tool = runpy.run_path(str(resources / "tools" / "weights" / "check_checkpoint.py"))["main"]
tool([str(resources / "checkpoints" / "soft_pico.shapes.safetensors")])
"""


def test_works_without_the_repository(wheel, tmp_path):
    target = tmp_path / "site"
    # A wheel without compiled code is installed by unpacking it.
    zipfile.ZipFile(wheel).extractall(target)
    # A closed port in the place of the network.
    environment = {**os.environ, "PYTHONPATH": str(target), "HTTPS_PROXY": "http://127.0.0.1:9", "TORCH_HOME": "hub"}
    environment.pop("SOFT_VIT_CHECKPOINTS", None)
    run = [sys.executable, "-c", USE.format(target=str(target))]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    first, second, *check = done.stdout.splitlines()
    assert first == "torch.Size([1, 10]) circle"
    assert "hub/checkpoints/SOFT_Tiny.pth" in second
    assert "pretrained=True reads it for soft_pico.shapes." in "\n".join(check)
