"""The command lines as functions."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tool() -> Callable[[str], Callable]:
    """main(argv) of tools/<name>.py."""
    return lambda name: runpy.run_path(str(ROOT / "tools" / f"{name}.py"))["main"]


@pytest.fixture(scope="session")
def demo() -> str:
    """Path of the demo config."""
    return str(ROOT / "configs" / "demo" / "soft_pico_shapes.py")
