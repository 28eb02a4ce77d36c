"""The page about an attention of one's own runs, and the version is the same everywhere."""

import multiprocessing
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from documents import ROOT, blocks

import soft_vit
from soft_vit.layers.attention.base import SelfAttention
from soft_vit.version import __version__

# What the page says and does not show: layers in transformers, and a checkpoint.
MORE = """
import transformers
from soft_vit import hf

config = transformers.ViTConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=64)
model = transformers.ViTModel(config).eval()
soft_vit.swap_attention(model, "exponential")
assert model(torch.randn(2, 3, 64, 64)).last_hidden_state.isfinite().all()
same = timm.create_model("exponential_vit_tiny_patch16", img_size=(64, 96), depth=2).eval()
same.load_state_dict(vit.state_dict())
assert torch.equal(same(image), vit(image))
"""


def run_pytest(folder: Path, *arguments: str) -> None:
    """In a process that is forked from this one; it can import from folder, and writes its output there."""
    sys.path.insert(0, str(folder))
    # Tables of tests are made when their files are imported.
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(str(ROOT / "tests")):
            del sys.modules[name]
    os.chdir(ROOT)
    with open(folder / "output", "w") as file, redirect_stdout(file):
        sys.exit(pytest.main([*arguments]))


def test_your_own_attention(tmp_path) -> None:
    """The page's code runs as a plugin of pytest, and the tests of all attentions take its type as their own.

    In a process of its own, because a registration stays.
    """
    code = [*blocks((ROOT / "docs" / "own_attention.md").read_text(), "python")]
    if find_spec("transformers") is not None:
        code.append(MORE)
    (tmp_path / "own_attention.py").write_text("\n".join(code))
    files = ["layers/attention/test_zoo.py", "layers/attention/test_layouts.py", "layers/test_vit_attention.py"]
    options = ["-q", "-n", "0", "-p", "own_attention", "-k", "exponential", *(f"tests/{file}" for file in files)]
    process = multiprocessing.get_context("fork").Process(target=run_pytest, args=(tmp_path, *options))
    process.start()
    process.join()
    output = (tmp_path / "output").read_text()
    assert process.exitcode == 0, output
    assert int(re.search(r"(\d+) passed", output)[1]) > 6


@pytest.mark.slow
def test_your_own_attention_is_measured(tmp_path) -> None:
    page = (ROOT / "docs" / "own_attention.md").read_text()
    first, *_, last = blocks(page, "python")
    (tmp_path / "my_module.py").write_text(first + last)
    for command in blocks(page, "console")[0].splitlines():
        words = [sys.executable, *command.split()[1:]]
        subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    for table in ("gym/results.csv", "atlas/atlas.csv"):
        assert "exponential" in (tmp_path / table).read_text()


def test_a_name_that_is_taken_is_refused() -> None:
    for kind in ("linear", "my attention"):
        with pytest.raises(ValueError, match=kind):
            soft_vit.register_attention(kind)(type("MyAttention", (SelfAttention,), {}))


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert {reference["identifiers"][0]["value"] for reference in citation["references"]} == {
        "arXiv:2110.11945",
        "arXiv:2207.03341",
    }
    versions = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__
