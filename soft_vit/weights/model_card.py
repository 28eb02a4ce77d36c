"""The model card: Markdown with the header that the Hugging Face hub reads."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from timm.models import resolve_pretrained_cfg

from soft_vit.text_tables import markdown_table
from soft_vit.weights import Entry

__all__ = ["model_card"]

CARD = """\
---
{header}---

# {name}

`{model}` of soft_vit, a vision transformer, with weights `{tag}`.

{facts}

{results}## Usage

```python
import timm
import soft_vit

{snippet}
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
```

## Papers

{papers}
"""

# Keys of timm's configuration that say what the images of these weights look like.
SHOWN = ("input_size", "mean", "std", "crop_pct", "crop_mode", "interpolation")


def model_card(
    entry: Entry,
    parameters: int,
    training: Sequence[tuple[str, str]],
    arguments: Mapping[str, Any],
    repo: str | None = None,
) -> str:
    """Return the card of published weights.

    training: facts with their names. arguments: that timm makes the model with. repo: of a hub, for the snippet.
    """
    name, cfg = entry.name, entry.cfg
    size = " x ".join(map(str, cfg["input_size"][1:]))
    facts = [
        ("parameters", f"{parameters / 1e6:.2f} M"),
        ("images", f"{size} pixels"),
        ("classes", cfg["num_classes"]),
        ("licence", entry.license or "not stated"),
        ("file", f"`{entry.file}`"),
        ("sha256", f"`{entry.sha256}`"),
        *training,
    ]
    return CARD.format(
        header=yaml.safe_dump(_header(entry), sort_keys=False, allow_unicode=True),
        name=name,
        model=entry.model,
        tag=entry.tag,
        facts=markdown_table(["", ""], facts),
        results=_results(entry),
        snippet="\n".join(_snippet(entry, arguments, repo)),
        papers="\n".join(_papers(entry.model)),
    )


def _papers(model: str) -> list[str]:
    """Return links to the papers that timm's configuration of a model names."""
    papers = resolve_pretrained_cfg(model).paper_ids or ()
    papers = (papers,) if isinstance(papers, str) else papers
    return [f"- [{paper}](https://arxiv.org/abs/{paper.removeprefix('arXiv:')})" for paper in papers]


def _header(entry: Entry) -> dict[str, Any]:
    header: dict[str, Any] = {
        "tags": ["image-classification", "timm", "soft_vit"],
        "pipeline_tag": "image-classification",
        "library_name": "timm",
        "license": entry.license or "other",
    }
    if entry.metrics:
        results = [
            {
                "task": {"type": "image-classification"},
                "dataset": {"name": metric.dataset, "type": metric.dataset},
                "metrics": [{"type": metric.name, "value": metric.value}],
            }
            for metric in entry.metrics
        ]
        header |= {
            "datasets": list(dict.fromkeys(metric.dataset for metric in entry.metrics)),
            "metrics": sorted({metric.name for metric in entry.metrics}),
            "model-index": [{"name": entry.name, "results": results}],
        }
    return header


def _results(entry: Entry) -> str:
    rows = [(m.dataset, m.name, f"{m.value:g}", f"{m.origin}: {m.source}") for m in entry.metrics]
    return f"## Results\n\n{markdown_table(['data set', 'metric', 'value', 'source'], rows)}\n\n" if rows else ""


def _snippet(entry: Entry, arguments: Mapping[str, Any], repo: str | None) -> list[str]:
    if repo is not None:
        return [f'model = timm.create_model("hf-hub:{repo}", pretrained=True).eval()']
    # Three channels go without saying.
    arguments = {key: value for key, value in arguments.items() if (key, value) != ("in_chans", 3)}
    shown = {"file": entry.file, **{key: entry.cfg[key] for key in SHOWN if key in entry.cfg}}
    return [
        "model = timm.create_model(",
        f'    "{entry.model}",',
        "    pretrained=True,",
        *[f"    {name}={_quoted(value)}," for name, value in arguments.items()],
        "    pretrained_cfg_overlay=dict(",
        *[f"        {name}={_quoted(value)}," for name, value in shown.items()],
        "    ),",
        ").eval()",
    ]


def _quoted(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
