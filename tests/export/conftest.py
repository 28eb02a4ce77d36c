"""A trained model, and its ONNX file, made once."""

import runpy
from pathlib import Path

import pytest

from soft_vit.export import ExportModel, load_export_model

TOOL = Path(__file__).parents[2] / "tools" / "export.py"


@pytest.fixture(scope="session")
def pico() -> ExportModel:
    return load_export_model("soft_pico.shapes")


@pytest.fixture(scope="session")
def pico_onnx(tmp_path_factory) -> Path:
    """As the command line writes it, which compares it with the model."""
    path = tmp_path_factory.mktemp("onnx") / "pico.onnx"
    runpy.run_path(str(TOOL))["main"](["--model", "soft_pico.shapes", "--format", "onnx", "--out", str(path)])
    return path
