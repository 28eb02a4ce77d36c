"""Command lines as functions."""

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tool() -> Callable[[str], Callable]:
    """Return a function from a name to main(argv) of <name>.py in tools/, or of `studies <name>`."""
    paths = {path.stem: str(path) for path in (ROOT / "tools").rglob("*.py")}

    def main_of(name: str) -> Callable:
        if name.startswith("studies "):
            return lambda argv: runpy.run_module("studies")["main"]([name.removeprefix("studies "), *argv])
        return runpy.run_path(paths[name])["main"]

    return main_of


@pytest.fixture
def mistake(tool, capsys) -> Callable[..., str]:
    """Return a function that runs a tool and returns the line of its error; the exit code is 1, or 2 from argparse."""

    def error_of(name: str, *arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            tool(name)([str(argument) for argument in arguments])
        code = ended.value.code
        line = capsys.readouterr().err.splitlines()[-1].partition(": ")[2] if code == 2 else code
        assert line.startswith("error: ")
        assert "\n" not in line
        return line

    return error_of


@pytest.fixture(scope="session")
def demo() -> str:
    """Return the path of the demo config."""
    return str(ROOT / "configs" / "demo" / "soft_pico_shapes.py")


@pytest.fixture
def photo(tmp_path, monkeypatch) -> str:
    """Return photo.png in the working folder, an image of 50 x 70 pixels."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)).save("photo.png")
    return "photo.png"
