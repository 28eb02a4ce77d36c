"""From the name of weights to a model that has them, and back.

In: `index` lists what is recorded, `fetch` finds or downloads its file, `read` opens a file and its notes without
executing anything, `load` builds a model and fits the weights to it. Out: `save` writes weights in another layout,
`publish` adds a digest, a model card and an entry of an index. `files` says where the package's own files lie.
"""

from soft_vit.weights.files import WeightsError
from soft_vit.weights.index import ENTRIES, Entry, Metric, add_entry, load_index

__all__ = ["ENTRIES", "Entry", "Metric", "WeightsError", "add_entry", "load_index"]
