"""Figures as Markdown and as CSV; docstrings as Markdown."""

import csv
from dataclasses import dataclass

from soft_vit.text_tables import docstring_markdown, markdown_table, rows_as_csv


def test_markdown():
    assert markdown_table(["a", "b"], [(1, ""), ("x", 2.5)]) == "| a | b |\n|---|---|\n| 1 |  |\n| x | 2.5 |"


@dataclass
class Row:
    name: str
    value: float | None


def test_csv_repeats_what_is_the_same():
    text = rows_as_csv([Row("a, b", 0.5), Row("c", None)], machine="x")
    assert list(csv.DictReader(text.splitlines())) == [
        {"machine": "x", "name": "a, b", "value": "0.5"},
        {"machine": "x", "name": "c", "value": ""},
    ]


def test_csv_of_nothing():
    assert rows_as_csv([]) == ""


def test_entries_of_a_docstring_become_a_list():
    docstring = "Mixes tokens.\n\nsize, side: of a window:\n    both odd.\nlimit: none.\n\nNote: this is no entry."
    assert docstring_markdown(docstring).split("\n\n") == [
        "Mixes tokens.",
        "- `size, side`: of a window:\n    both odd.\n- `limit`: none.",
        "Note: this is no entry.",
    ]
