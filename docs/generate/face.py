"""The tables of README: what real data and runtimes showed, from results that other pages have in full."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.published import Published
from docs.generate.scatter import read_rates, short
from soft_vit.export import FORMATS
from soft_vit.text_tables import markdown_table, read_csv
from studies.real import runs

SIDES = ("with softmax", "without")
PASSED, RATED = ("swin_tiny_patch4_window7_224", "soft_tiny"), ("swin_tiny_patch4_window7_224", "mlla_tiny")
"""Models of both sides: for the pass of a large image, and by published accuracy."""
MEGAPIXELS = 20


def measured_table(speeds: Path, large: Path, models: Mapping[str, Published]) -> str:
    """Return a row for each thing that was measured with softmax and without.

    speeds, large: CSV files of `python -m benchmarks models` and of `python -m benchmarks large`.
    """
    (photo,), (teacher,) = (runs.load(part).values() for part in ("photo", "teacher"))
    kept = runs.load("linearise")[photo["student"]]
    passes = {row["model"]: row for row in read_csv(large) if float(row["megapixels"]) == MEGAPIXELS}
    rates = read_rates(speeds)
    fashion = [x["metrics"]["accuracy/top1"] for name, x in runs.load("fashion").items() if "soft_plus_pico" in name]
    seconds = (f"{time[0]:.1f} s" for time in photo["seconds"].values())
    defects = (f"{x['probe']['ridge']:.1f} %" for x in (teacher, kept))
    passed = (passes[name] for name in PASSED)
    costs = (f"{float(row['gigabytes']):.1f} GB, {float(row['seconds']):.0f} s" for row in passed)
    top1 = (f"{models[name].top1:.1f} %; {rates[name].median:.2f}" for name in RATED)
    rows: list[list[Any]] = [
        ["the photo above through a ViT-S", *seconds],
        ["cosine of its tokens with those with softmax", "1", f"{photo['cosine']:.2f}"],
        ["defects of solar cells, read from its features", *defects],
        [f"{MEGAPIXELS} megapixels through {_both(PASSED)}", *costs],
        [f"ImageNet top-1, published, of {_both(RATED)}; images / s at 800 x 1333", *top1],
        ["Fashion-MNIST by `soft_plus_pico`, trained here", "", f"{fmean(fashion):.2f} %"],
    ]
    return markdown_table(["measured", *SIDES], rows)


def _both(names: tuple[str, str]) -> str:
    return " and ".join(f"`{short(name)}`" for name in names)


def runtimes_table() -> str:
    """Return a column for each format with what its file differs by, and its accuracy on real test images."""
    found = runs.load("deploy")
    errors, accuracies, quantised = ["largest difference"], ["accuracy %"], ["accuracy % in int8"]
    for name in FORMATS:
        result = found.get(name, {})
        ran = result.get("error") is not None
        errors.append(f"✓ {result['error']:.0e}" if ran else "✓ not run" if result else "")
        accuracies.append(f"{result['accuracy']:.2f}" if ran else "")
        quantised.append(f"{found[f'{name}_int8']['accuracy']:.2f}" if f"{name}_int8" in found else "")
    return markdown_table(["written as", *(f"`{name}`" for name in FORMATS)], [errors, accuracies, quantised])
