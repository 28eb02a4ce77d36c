"""Weights published as the tests have them."""

from pathlib import Path

from soft_vit.data import CLASSES
from soft_vit.weights.publish import parse_metric, publish
from soft_vit.weights.spec import ModelSpec

METRIC = parse_metric("top1=97.7", "generated shapes", "tools/test.py")

SECRET = "secret_place"

CFG = {"input_size": (3, 64, 64), "mean": (0.5,) * 3, "std": (64 / 255,) * 3, "label_names": CLASSES}
NOTES = ModelSpec(
    "soft_pico",
    {"img_size": [64, 64], "newton_iters": 12},
    CFG | {"crop_pct": 1.0, "interpolation": "bicubic", "crop_mode": "center"},
    {"epochs": "5", "optimizer": "AdamW", "learning rate": "0.001", "batch size of a process": "32"},
)


def run(checkpoint: Path, out: Path, **options) -> list[str]:
    return publish(checkpoint, out, **{"tag": "mine", "licence": "mit", "metrics": [METRIC], **options})
