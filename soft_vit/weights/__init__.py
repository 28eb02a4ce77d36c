"""Where weights come from: the index of recorded files, the folders they lie in, and their download."""

from soft_vit.weights.errors import WeightsError
from soft_vit.weights.index import Entry, Metric, add_entry, load_index

__all__ = ["Entry", "Metric", "WeightsError", "add_entry", "load_index"]
