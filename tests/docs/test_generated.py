"""Generated pages, tables and pictures are up to date."""

import pytest
import yaml
from documents import ROOT

from docs.generate.pages import ENTRIES, PAGES, TABLES, generated
from docs.generate.weights import metafile, readme_table


@pytest.mark.parametrize("name", [*PAGES, *TABLES])
def test_file_is_what_is_generated(name):
    assert generated(name) == (ROOT / name).read_text(), "run python -m docs.generate"


def test_every_recorded_file_is_listed():
    models = yaml.safe_load(metafile(ENTRIES))["Models"]
    assert [model["Name"] for model in models] == [entry.name for entry in ENTRIES]
    assert all(model["Weights"] for model in models)
    rows = readme_table(ENTRIES).splitlines()[2:]
    assert len(rows) == sum(max(len(entry.metrics), 1) for entry in ENTRIES)
    assert all(("published" in row) != ("measured" in row) for row in rows if "|  |" not in row)
