"""Models with a published top-1 accuracy on ImageNet-1k at 224 pixels, to relate it to their speed."""

from typing import NamedTuple

from soft_vit.weights import load_index


class Published(NamedTuple):
    """top1: percent. kind: ours, or of timm: softmax-free, softmax, convolutions. source: an arXiv number."""

    top1: float
    kind: str
    source: str


OF_TIMM = {
    "efficientvit_b1": Published(79.4, "softmax-free", "2205.14756"),
    "efficientvit_b2": Published(82.1, "softmax-free", "2205.14756"),
    "swiftformer_xs": Published(75.7, "softmax-free", "2303.15446"),
    "swiftformer_s": Published(78.5, "softmax-free", "2303.15446"),
    "swiftformer_l1": Published(80.9, "softmax-free", "2303.15446"),
    "swiftformer_l3": Published(83.0, "softmax-free", "2303.15446"),
    "poolformer_s12": Published(77.2, "softmax-free", "2111.11418"),
    "deit_tiny_patch16_224": Published(72.2, "softmax", "2012.12877"),
    "deit_small_patch16_224": Published(79.8, "softmax", "2012.12877"),
    "swin_tiny_patch4_window7_224": Published(81.3, "softmax", "2103.14030"),
    "pvt_v2_b0": Published(70.5, "softmax", "2106.13797"),
    "pvt_v2_b1": Published(78.7, "softmax", "2106.13797"),
    "pvt_v2_b2": Published(82.0, "softmax", "2106.13797"),
    "xcit_tiny_12_p16_224": Published(77.1, "softmax", "2106.09681"),
    "resnet50": Published(80.4, "convolutions", "2110.00476"),
    "convnext_tiny": Published(82.1, "convolutions", "2201.03545"),
    "mambaout_tiny": Published(82.7, "convolutions", "2405.07992"),
}
"""Models of timm. Those of SwiftFormer learned from another model as well."""


def published() -> dict[str, Published]:
    """Return the figures by model: timm's, and those of the index of weights, the first of each model."""
    found = dict(OF_TIMM)
    for entry in load_index():
        for metric in entry.metrics:
            if metric.name == "top-1" and metric.dataset.startswith("ImageNet-1k") and not entry.model.endswith("_384"):
                found.setdefault(entry.model, Published(metric.value, "ours", metric.source))
    return found
