"""The papers of model families."""

import csv
from functools import cache
from pathlib import Path

COLLECTIONS = Path(__file__).with_name("papers.csv")
"""Name, arXiv number and title of each collection, by how the names of its models begin. The first match counts."""


@cache
def _collections() -> list[dict[str, str]]:
    with COLLECTIONS.open(newline="") as file:
        return list(csv.DictReader(file))


def collection_of(model: str) -> tuple[str, str, str]:
    """Return the name, the paper's address and its title of the collection that a model belongs to."""
    found = next(row for row in _collections() if model.startswith(row["start"]))
    return found["name"], f"https://arxiv.org/abs/{found['number']}", found["title"]
