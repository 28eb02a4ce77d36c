"""Load weights into models, convert them and publish them.

In: `index` lists the recorded weights, `fetch` finds or downloads their file, `read` reads a file and its notes without
executing anything, `load` builds a model and loads the weights. Out: `save` writes weights in another layout, `publish`
adds a digest, a model card and an entry for the index. `files` locates the package's own files.
"""

from soft_vit.weights.files import WeightsError
from soft_vit.weights.index import RECORDED_WEIGHTS, Entry, Metric, add_entry, load_index

__all__ = ["RECORDED_WEIGHTS", "Entry", "Metric", "WeightsError", "add_entry", "load_index"]
