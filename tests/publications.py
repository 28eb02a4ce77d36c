"""Weights published as the tests have them."""

from pathlib import Path

from soft_vit.weights.publish import parse_metric, publish

METRIC = parse_metric("top1=97.7", "generated shapes", "tools/test.py")


def run(checkpoint: Path, out: Path, **options) -> list[str]:
    options = {"tag": "mine", "licence": "mit", "metrics": [METRIC], **options}
    return publish(checkpoint, out, **options)
