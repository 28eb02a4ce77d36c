"""How docstrings of this repository become Markdown: lines that explain a name become a list."""

import re
from typing import Any

import griffe

ENTRY = re.compile(r"[a-z_]\w*(, [a-z_]\w*)*: ")


def as_markdown(docstring: str) -> str:
    """A docstring with its entries, `name: what it is` and deeper lines below, as items of lists."""
    paragraphs = []
    for paragraph in docstring.split("\n\n"):
        lines = paragraph.split("\n")
        if ENTRY.match(paragraph):
            lines = [re.sub(rf"^({ENTRY.pattern[:-2]}): ", r"- `\1`: ", line) for line in lines]
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


class Entries(griffe.Extension):
    """Applies it to every docstring that mkdocstrings shows."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
