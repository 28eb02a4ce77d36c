"""Show the entries of docstrings, `name: what it is`, as lists."""

from typing import Any

import griffe

from docs.generate.docstrings import docstring_markdown


class Entries(griffe.Extension):
    """Convert every docstring that mkdocstrings shows."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = docstring_markdown(obj.docstring.value)
