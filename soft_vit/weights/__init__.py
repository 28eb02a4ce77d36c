"""Where weights come from, how they are read, and how they get into a model."""

from soft_vit.weights.files import WeightsError
from soft_vit.weights.index import ENTRIES, Entry, Metric, add_entry, load_index

__all__ = ["ENTRIES", "Entry", "Metric", "WeightsError", "add_entry", "load_index"]
