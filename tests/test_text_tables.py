"""Figures and docstrings as Markdown."""

from soft_vit.text_tables import docstring_markdown, markdown_table


def test_markdown():
    assert markdown_table(["a", "b"], [(1, ""), ("x", 2.5)]) == "| a | b |\n|---|---|\n| 1 |  |\n| x | 2.5 |"


def test_entries_of_a_docstring_become_a_list():
    docstring = "Mixes tokens.\n\nsize, side: of a window:\n    both odd.\nlimit: none.\n\nNote: this is no entry."
    assert docstring_markdown(docstring).split("\n\n") == [
        "Mixes tokens.",
        "- `size, side`: of a window:\n    both odd.\n- `limit`: none.",
        "Note: this is no entry.",
    ]
