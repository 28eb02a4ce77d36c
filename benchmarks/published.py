"""Models with a published top-1 accuracy on ImageNet-1k at 224 pixels, to relate it to their speed."""

from typing import NamedTuple

from soft_vit.weights import load_index


class Published(NamedTuple):
    """top1: percent. kind: ours, or of timm: softmax-free, softmax, convolutions. source: an arXiv number."""

    top1: float
    kind: str
    source: str


_OF_TIMM: dict[str, dict[str, tuple[float, str]]] = {
    "softmax-free": {
        "efficientvit_b1": (79.4, "2205.14756"),
        "efficientvit_b2": (82.1, "2205.14756"),
        "swiftformer_xs": (75.7, "2303.15446"),
        "swiftformer_s": (78.5, "2303.15446"),
        "swiftformer_l1": (80.9, "2303.15446"),
        "swiftformer_l3": (83.0, "2303.15446"),
        "poolformer_s12": (77.2, "2111.11418"),
    },
    "softmax": {
        "deit_tiny_patch16_224": (72.2, "2012.12877"),
        "deit_small_patch16_224": (79.8, "2012.12877"),
        "swin_tiny_patch4_window7_224": (81.3, "2103.14030"),
        "pvt_v2_b0": (70.5, "2106.13797"),
        "pvt_v2_b1": (78.7, "2106.13797"),
        "pvt_v2_b2": (82.0, "2106.13797"),
        "xcit_tiny_12_p16_224": (77.1, "2106.09681"),
    },
    "convolutions": {
        "resnet50": (80.4, "2110.00476"),
        "convnext_tiny": (82.1, "2201.03545"),
        "mambaout_tiny": (82.7, "2405.07992"),
    },
}


def published() -> dict[str, Published]:
    """Return the figures by model: timm's, and those of the index of weights, the first of each model."""
    found = {
        name: Published(top1, kind, source)
        for kind, models in _OF_TIMM.items()
        for name, (top1, source) in models.items()
    }
    for entry in load_index():
        for metric in entry.metrics:
            if metric.name == "top-1" and metric.dataset.startswith("ImageNet-1k") and not entry.model.endswith("_384"):
                found.setdefault(entry.model, Published(metric.value, "ours", metric.source))
    return found
