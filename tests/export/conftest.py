"""A trained model, and its ONNX file, made once."""

from pathlib import Path

import pytest

from soft_vit.export import Subject, export, load_subject


@pytest.fixture(scope="session")
def pico() -> Subject:
    return load_subject("soft_pico.shapes")


@pytest.fixture(scope="session")
def pico_onnx(pico, tmp_path_factory) -> Path:
    return export(pico, tmp_path_factory.mktemp("onnx") / "pico.onnx", "onnx", report=lambda line: None)
