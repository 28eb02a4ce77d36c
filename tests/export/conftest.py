"""A trained model."""

import pytest

from soft_vit.export import ExportModel, load_export_model


@pytest.fixture(scope="session")
def pico() -> ExportModel:
    return load_export_model("soft_pico.shapes")
