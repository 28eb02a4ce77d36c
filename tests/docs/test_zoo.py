import re

from documents import ROOT
from safetensors.torch import load_file

from docs.generate.zoo import count_model, read_counts
from soft_vit.weights import ENTRIES

COUNTS = read_counts(ROOT / "docs" / "zoo.csv")


def test_counts_are_those_of_the_models():
    assert COUNTS.keys() == {entry.model for entry in ENTRIES.values()}
    for name in ("soft_pico.shapes", "soft_plus_pico.tiles"):
        entry = ENTRIES[name]
        counts = COUNTS[entry.model]
        assert count_model(entry) == counts
        tensors = load_file(ROOT / "checkpoints" / entry.file)
        # BatchNorm's statistics are no parameters.
        learned = [tensor for key, tensor in tensors.items() if not re.search("running|num_batches", key)]
        assert sum(tensor.numel() for tensor in learned) == int(counts["params"])
