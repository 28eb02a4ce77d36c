"""The model card: Markdown with the header of the Hugging Face hub."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from timm.models import resolve_pretrained_cfg

from soft_vit.text_tables import markdown_table
from soft_vit.weights import Entry

CARD = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")

# Entries of timm's configuration that describe the images.
IMAGE_KEYS = ("input_size", "mean", "std", "crop_pct", "crop_mode", "interpolation")


def model_card(
    entry: Entry,
    parameters: int,
    training: Sequence[tuple[str, str]],
    arguments: Mapping[str, Any],
    repo: str | None = None,
) -> str:
    """Return the card of published weights.

    training: names and values of facts. arguments: of the model, for timm. repo: on the hub, for the snippet.
    """
    name, cfg = entry.name, entry.cfg
    size = " x ".join(map(str, cfg["input_size"][1:]))
    facts = [
        ("parameters", f"{parameters / 1e6:.2f} M"),
        ("images", f"{size} pixels"),
        ("classes", cfg["num_classes"]),
        ("licence", entry.license),
        ("file", f"`{entry.file}`"),
        ("sha256", f"`{entry.sha256}`"),
        *training,
    ]
    rows = [(m.dataset, m.name, f"{m.value:g}", f"{m.origin}: {m.source}") for m in entry.metrics]
    results = f"## Results\n\n{markdown_table(['data set', 'metric', 'value', 'source'], rows)}\n\n" if rows else ""
    papers = resolve_pretrained_cfg(entry.model).paper_ids or ()
    papers = (papers,) if isinstance(papers, str) else papers
    return CARD.format(
        header=_header(entry),
        name=name,
        model=entry.model,
        tag=entry.tag,
        facts=markdown_table(["", ""], facts),
        results=results,
        snippet="\n".join(_snippet(entry, arguments, repo)),
        papers="\n".join(f"- [{paper}](https://arxiv.org/abs/{paper.removeprefix('arXiv:')})" for paper in papers),
    )


def _header(entry: Entry) -> str:
    """Return what the hub reads of a card, as YAML."""
    task = "image-classification"
    results = [EvalResult(task, m.dataset, m.dataset, m.name, m.value) for m in entry.metrics]
    return ModelCardData(
        license=entry.license,
        library_name="timm",
        pipeline_tag=task,
        tags=[task, "timm", "soft_vit"],
        datasets=list(dict.fromkeys(m.dataset for m in entry.metrics)) or None,
        metrics=sorted({m.name for m in entry.metrics}) or None,
        model_name=entry.name if results else None,
        eval_results=results or None,
    ).to_yaml()


def _snippet(entry: Entry, arguments: Mapping[str, Any], repo: str | None) -> list[str]:
    if repo is not None:
        return [f'model = timm.create_model("hf-hub:{repo}", pretrained=True).eval()']
    shown = {"file": entry.file, **{key: entry.cfg[key] for key in IMAGE_KEYS if key in entry.cfg}}
    return [
        "model = timm.create_model(",
        f"    {entry.model!r},",
        "    pretrained=True,",
        *[f"    {name}={value!r}," for name, value in arguments.items()],
        "    pretrained_cfg_overlay=dict(",
        *[f"        {name}={value!r}," for name, value in shown.items()],
        "    ),",
        ").eval()",
    ]
