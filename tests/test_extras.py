"""What a plain installation says where a module of an extra is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from soft_vit.extras import EXTRAS, naming_extras

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "train": "--help",
    "test": "--help",
    "predict": "--help",
    "export": "--help",
    "convert_checkpoint": "--help",
    "publish_checkpoint": "--help",
    "train_attentions": "--help",
    "benchmark_data": "--help",
    "get_flops": "configs/soft_tiny.py",
}
RUN_ALL = """
import runpy, sys
sys.modules["mmengine"] = None
for name, argument in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.argv = [name, argument]
    try:
        runpy.run_path(f"tools/{name}.py", run_name="__main__")
    except SystemExit as end:
        print(name, end.code, sep=": ")
"""


def test_tools_name_the_extra():
    words = [word for command in COMMANDS.items() for word in command]
    ended = subprocess.run([sys.executable, "-c", RUN_ALL, *words], cwd=ROOT, capture_output=True, text=True)
    said = "error: mmengine is missing; pip install 'soft_vit[train]' brings it."
    assert ended.stdout.splitlines() == [f"{name}: {said}" for name in COMMANDS], ended.stderr


def test_modules_of_no_extra_are_left_alone():
    with pytest.raises(ModuleNotFoundError), naming_extras():
        import no_such_module  # noqa: F401


@pytest.mark.parametrize(("module", "extra"), EXTRAS.items())
def test_table(module, extra):
    """The requirements of the extra name the distribution, which begins as the module does."""
    lines = (ROOT / "requirements" / f"{extra}.txt").read_text().replace("-", "_").splitlines()
    assert any(line.startswith(module) for line in lines)
