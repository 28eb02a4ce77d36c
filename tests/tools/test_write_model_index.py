"""tools/write_model_index.py: the file, the printed table, and an index that is not there."""

import pytest

from soft_vit.weights import load_index
from soft_vit.weights.tables import metafile, readme_table


def test_file_and_table(tool, tmp_path, capsys):
    tool("write_model_index")(["--out", str(tmp_path / "model-index.yml")])
    assert capsys.readouterr().out == readme_table(load_index())
    assert (tmp_path / "model-index.yml").read_text() == metafile(load_index())


def test_mistake_is_one_sentence(tool, tmp_path):
    with pytest.raises(SystemExit, match="error: There is no index of weights"):
        tool("write_model_index")(["--index", str(tmp_path / "nowhere.json")])
