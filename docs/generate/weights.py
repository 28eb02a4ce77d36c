"""Files generated from the index of weights: a Markdown table, and OpenMMLab's `model-index.yml`."""

from collections.abc import Sequence
from typing import Any

import yaml

from docs.generate.papers import collection_of
from soft_vit.text_tables import markdown_table
from soft_vit.weights.index import Entry

TASKS = {"top-1": ("Image Classification", "Top 1 Accuracy"), "mIoU": ("Semantic Segmentation", "mIoU")}
"""OpenMMLab's names of a metric's task and of the metric."""


def readme_table(entries: Sequence[Entry]) -> str:
    """Return a Markdown table with a row per entry and metric, in which figures are marked as published or measured."""
    rows = []
    for entry in entries:
        # The `soft_*` model without weights of its own loads those of `soft_norm_*` too.
        plain = entry.model.replace("soft_norm_", "soft_")
        name = f"`{entry.name}`" + ("" if any(other.model == plain for other in entries) else f", also `{plain}`")
        where = f"[{entry.file}]({entry.page})" if entry.sources else f"checkpoints/{entry.file}"
        for metric in entry.metrics or [None]:
            figures = ["", "", ""]
            if metric is not None:
                said = f"published, {metric.source}" if metric.origin == "published" else "measured here"
                figures = [f"{metric.value:g}" + f" {metric.name}" * (metric.name != "top-1"), metric.dataset, said]
            rows.append([name, *figures, entry.license or "not stated", where])
    return markdown_table(["weights", "top-1 %, or other", "on", "said by", "licence", "file"], rows) + "\n"


def metafile(entries: Sequence[Entry]) -> str:
    """Return the YAML text in which OpenMMLab's tools look up models. Their weights are loaded through timm."""
    listed = [entry for entry in entries if entry.config is not None]
    collections = [
        {"Name": name, "Metadata": {"Architecture": ["Softmax-free attention"]}, "Paper": {"URL": url, "Title": title}}
        for name, url, title in dict.fromkeys(collection_of(entry.model) for entry in listed)
    ]
    index = {"Collections": collections, "Models": [_model(entry) for entry in listed]}
    header = "# Written from checkpoints/index.json by `python -m docs.generate`.\n"
    return header + yaml.safe_dump(index, sort_keys=False, allow_unicode=True, width=120)


def _model(entry: Entry) -> dict[str, Any]:
    results = []
    for of in entry.metrics:
        task, name = TASKS[of.name]
        origin = f"{of.origin}: {of.source}"
        results.append({"Dataset": of.dataset, "Task": task, "Metrics": {name: of.value}, "Origin": origin})
    where = {"Name": entry.name, "In Collection": collection_of(entry.model)[0], "Config": entry.config}
    return {**where, "Weights": f"timm://{entry.name}", "Results": results}
