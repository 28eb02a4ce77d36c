"""What is written from the index of weights: the metafile and the table of checkpoints/README.md."""

from pathlib import Path

import pytest
import yaml

from soft_vit.weights import load_index
from soft_vit.weights.tables import metafile, readme_table

ROOT = Path(__file__).parents[2]
ENTRIES = load_index()


def test_metafile():
    text = (ROOT / "model-index.yml").read_text()
    assert text == metafile(ENTRIES), "run python tools/write_model_index.py"
    models = yaml.safe_load(text)["Models"]
    assert [model["Name"] for model in models] == [entry.name for entry in ENTRIES]
    assert all(model["Weights"] for model in models)


@pytest.mark.parametrize("page", ["checkpoints/README.md"])
def test_tables(page):
    table = readme_table(ENTRIES)
    assert table in (ROOT / page).read_text(), "put what python tools/write_model_index.py prints into it"
    rows = table.splitlines()[2:]
    assert len(rows) == sum(max(len(entry.metrics), 1) for entry in ENTRIES)
    assert all(("published" in row) != ("measured" in row) for row in rows if "|  |" not in row)
