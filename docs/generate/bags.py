"""The table of measured poolings of bags, from the results of `python -m studies real bags`."""

from pathlib import Path

from docs.generate.real import over_seeds
from soft_vit.text_tables import markdown_table
from studies.real import runs
from studies.real.bags import LARGE, POOLINGS

WORDS = {
    "mean": "mean",
    "max": "maximum",
    "gated": "gated attention",
    "nystrom": "`nystrom`, class token",
    "linear": "`linear`, class token",
    "softmax_one": "`softmax_one`, class token",
}


def bags_table(folder: Path = runs.RESULTS) -> str:
    """Return the table of accuracy, area under the curve and cost, a row for each pooling with results."""
    results, rows = runs.load("bags", folder), []
    for pool in POOLINGS:
        found = [one for one in results.values() if one["pool"] == pool and "auc" in one]
        cost = results.get(f"cost_{pool}")
        cells = [f"{cost['seconds']:.1f}", f"{cost['gigabytes']:.2f}"] if cost else ["", ""]
        if found:
            accuracy, area = ([one[name] for one in found] for name in ("accuracy", "auc"))
            rows.append([WORDS[pool], over_seeds(accuracy), over_seeds(area, 3), *cells])
    header = ["pooling", "accuracy, %", "area under the curve", f"CPU seconds of {LARGE:,} instances", "GB"]
    return markdown_table(header, rows)
