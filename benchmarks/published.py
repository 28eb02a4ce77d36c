"""Models with a published top-1 accuracy on ImageNet-1k at 224 pixels, to relate it to their speed."""

from pathlib import Path
from typing import NamedTuple

from soft_vit.text_tables import read_csv
from soft_vit.weights import load_index


class Published(NamedTuple):
    """top1: percent. kind: ours, or of timm: softmax-free, softmax, convolutions. source: an arXiv number."""

    top1: float
    kind: str
    source: str


OF_TIMM = Path(__file__).with_name("published.csv")
"""The figures of timm's models. Those of SwiftFormer learned from another model as well."""


def published() -> dict[str, Published]:
    """Return the figures by model: timm's, and those of the index of weights, the first of each model."""
    found = {row["model"]: Published(float(row["top1"]), row["kind"], row["source"]) for row in read_csv(OF_TIMM)}
    for entry in load_index():
        for metric in entry.metrics:
            if metric.name == "top-1" and metric.dataset.startswith("ImageNet-1k") and not entry.model.endswith("_384"):
                found.setdefault(entry.model, Published(metric.value, "ours", metric.source))
    return found
