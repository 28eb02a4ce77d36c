"""tools/make_shapes.py: a tree, and mistakes in a sentence."""

import pytest


@pytest.fixture
def make_shapes(tool):
    return tool("make_shapes")


def test_it_writes_a_tree_and_says_what(make_shapes, tmp_path, capsys):
    make_shapes(
        [str(tmp_path / "tree"), "--task", "coco", "--train", "3", "--val", "2", "--size", "48", "64", "--seed", "5"]
    )
    assert "5 images" in capsys.readouterr().out
    assert len(list((tmp_path / "tree" / "train2017").iterdir())) == 3


def test_a_mistake_is_one_sentence(make_shapes, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="not an empty folder"):
        make_shapes([str(tmp_path), "--task", "ade"])
    with pytest.raises(SystemExit):
        make_shapes([str(tmp_path / "tree"), "--task", "ade", "--size", "1", "2", "3"])
    assert "3 numbers" in capsys.readouterr().err
