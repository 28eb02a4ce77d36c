"""Docstrings as Markdown."""

import re

_ENTRY = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): ", re.MULTILINE)
# Within a line, an entry follows a full stop.
_RUN_IN = re.compile(r"(?<=\.)\s+([a-z_]\w*(?:, [a-z_]\w*)*): ")


def docstring_markdown(docstring: str) -> str:
    """A docstring as Markdown: entries, `name: what it is` and deeper lines below, become lists; examples, code."""
    return "\n\n".join(map(_paragraph_markdown, docstring.split("\n\n")))


def _paragraph_markdown(text: str) -> str:
    if text.startswith(">>> "):
        return f"```pycon\n{text.rstrip()}\n```"
    listed = _ENTRY.sub(r"- `\1`: ", text) if _ENTRY.match(text) else text
    start, *entries = _RUN_IN.split(listed)
    found = [f"- `{name}`: {what}" for name, what in zip(entries[::2], entries[1::2], strict=True)]
    # A list needs an empty line above it.
    return "\n".join([start, *([""] if found and listed is text else []), *found])
