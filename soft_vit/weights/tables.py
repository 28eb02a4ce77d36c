"""What is written from the index: the table of the READMEs, and OpenMMLab's `model-index.yml`."""

from collections.abc import Sequence
from typing import Any

import yaml

from soft_vit.text_tables import markdown_table
from soft_vit.weights.index import Entry

__all__ = ["collection_of", "metafile", "readme_table"]

# Collections by how the names of their models begin, the first that fits: name, paper, title.
COLLECTIONS = {
    "soft_norm_": ("SOFT-norm", "https://arxiv.org/abs/2207.03341", "Softmax-free Linear Transformers"),
    "soft_": (
        "SOFT",
        "https://arxiv.org/abs/2110.11945",
        "SOFT: Softmax-free Transformer with Linear Complexity",
    ),
    "mlla_": (
        "MILA",
        "https://arxiv.org/abs/2405.16605",
        "Demystify Mamba in Vision: A Linear Attention Perspective",
    ),
    "inline_": (
        "InLine",
        "https://arxiv.org/abs/2412.06590",
        "Bridging the Divide: Reconsidering Softmax and Linear Attention",
    ),
    "pola_": (
        "PolaFormer",
        "https://arxiv.org/abs/2501.15061",
        "PolaFormer: Polarity-aware Linear Attention for Vision Transformers",
    ),
    "flatten_": (
        "FLatten",
        "https://arxiv.org/abs/2308.00442",
        "FLatten Transformer: Vision Transformer using Focused Linear Attention",
    ),
    "vittt_": ("ViT3", "https://arxiv.org/abs/2512.01643", "ViT3: Unlocking Test-Time Training in Vision"),
    "h_vittt_": ("H-ViT3", "https://arxiv.org/abs/2512.01643", "ViT3: Unlocking Test-Time Training in Vision"),
    "ravlt_": (
        "RAVLT",
        "https://arxiv.org/abs/2411.07635",
        "Breaking the Low-Rank Dilemma of Linear Attention",
    ),
    "mavit_": (
        "MAViT",
        "https://arxiv.org/abs/2507.00698",
        "Rectifying Magnitude Neglect in Linear Attention",
    ),
}
# The pyramid with any other attention.
COLLECTIONS[""] = ("SOFT's pyramid", *COLLECTIONS["soft_"][1:])


def collection_of(model: str) -> tuple[str, str, str]:
    """Name, paper and title of the collection that a model belongs to."""
    return next(found for start, found in COLLECTIONS.items() if model.startswith(start))


def readme_table(entries: Sequence[Entry]) -> str:
    """A Markdown table with a row for each entry; every figure says whether it was published or measured."""
    rows = []
    for entry in entries:
        where = f"[{entry.file}]({entry.page})" if entry.sources else f"checkpoints/{entry.file}"
        for metric in entry.metrics or [None]:
            figures = ["", "", ""]
            if metric is not None:
                said = f"published, {metric.source}" if metric.origin == "published" else "measured here"
                figures = [f"{metric.value:g}", metric.dataset, said]
            rows.append([_names(entry, entries), *figures, entry.license or "not stated", where])
    return markdown_table(["weights", "top-1 %", "on", "said by", "licence", "file"], rows) + "\n"


def _names(entry: Entry, entries: Sequence[Entry]) -> str:
    """The name of an entry, and the model whose pretrained=True gives it too: a `soft_*` without weights of its own."""
    plain = entry.model.replace("soft_norm_", "soft_")
    return f"`{entry.name}`" + ("" if any(other.model == plain for other in entries) else f", also `{plain}`")


def metafile(entries: Sequence[Entry]) -> str:
    """The YAML text by which OpenMMLab's tools find models; the weights come through timm, as everywhere else."""
    listed = [entry for entry in entries if entry.config is not None]
    collections = {collection_of(entry.model) for entry in listed}
    index = {
        "Collections": [
            {
                "Name": name,
                "Metadata": {"Architecture": ["Softmax-free attention"]},
                "Paper": dict(URL=url, Title=title),
            }
            for name, url, title in COLLECTIONS.values()
            if (name, url, title) in collections
        ],
        "Models": [_model(entry) for entry in listed],
    }
    header = "# Written from checkpoints/index.json by `python tools/write_model_index.py`.\n"
    return header + yaml.safe_dump(index, sort_keys=False, allow_unicode=True, width=120)


def _model(entry: Entry) -> dict[str, Any]:
    results = [
        {
            "Dataset": metric.dataset,
            "Task": "Image Classification",
            "Metrics": {"Top 1 Accuracy" if metric.name == "top-1" else metric.name: metric.value},
            "Origin": f"{metric.origin}: {metric.source}",
        }
        for metric in entry.metrics
    ]
    return {
        "Name": entry.name,
        "In Collection": collection_of(entry.model)[0],
        "Config": entry.config,
        "Weights": f"timm://{entry.name}",
        "Results": results,
    }
