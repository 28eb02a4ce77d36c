import re

from documents import ROOT
from safetensors.torch import load_file

from benchmarks.atlas.table import ModelRow, Table
from docs.generate.zoo import atlas_rates, count_model, read_counts
from soft_vit.weights import ENTRIES

COUNTS = read_counts(ROOT / "docs" / "zoo.csv")


def test_rates_are_of_one_image_in_eager_mode():
    cases = [
        ("a+capped", "224", 3.0, 1, "eager"),
        ("a+capped", "224", 5.0, 8, "eager"),
        ("a", "224", 9.0, 1, "compiled"),
    ]
    cases += [("a", "512", 7.0, 1, "eager"), ("b", "224", None, 1, "eager")]
    rows = [ModelRow(name, "inference", size, batch, form, rate) for name, size, rate, batch, form in cases]
    assert atlas_rates(Table("a machine", "2026-01-31", "a command", rows)) == {"a": 3.0}


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
