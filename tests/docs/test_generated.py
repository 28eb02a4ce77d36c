"""Generated pages, tables and pictures are up to date."""

import pytest
from documents import ROOT

from docs.generate.pages import PAGES, TABLES, generated

# Every task is drawn, for seconds.
SLOW = ("docs/gym/tasks.md",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in (*PAGES, *TABLES)]
)
def test_file_is_what_is_generated(name):
    assert generated(name) == (ROOT / name).read_text(), "run python -m docs.generate"
