"""The papers of model families."""

from functools import cache
from pathlib import Path

from soft_vit.text_tables import read_csv

COLLECTIONS = Path(__file__).with_name("papers.csv")
"""Name, arXiv number and title of each collection, by how the names of its models begin. The first match counts."""


@cache
def collection_of(model: str) -> tuple[str, str, str]:
    """Return the name, the paper's address and its title of the collection that a model belongs to."""
    found = next(row for row in read_csv(COLLECTIONS) if model.startswith(row["start"]))
    return found["name"], f"https://arxiv.org/abs/{found['number']}", found["title"]
