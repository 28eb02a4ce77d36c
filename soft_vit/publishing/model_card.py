"""The model card: Markdown with the header that the Hugging Face hub reads."""

import json
from collections.abc import Sequence

from soft_vit.weights import Entry

__all__ = ["model_card"]

CITATIONS = """\
@inproceedings{SOFT,
  title     = {SOFT: Softmax-free Transformer with Linear Complexity},
  author    = {Lu, Jiachen and Yao, Jinghan and Zhang, Junge and Zhu, Xiatian and Xu, Hang and Gao, Weiguo and
               Xu, Chunjing and Xiang, Tao and Zhang, Li},
  booktitle = {NeurIPS},
  year      = {2021}
}"""


def model_card(entry: Entry, parameters: int, training: Sequence[tuple[str, str]], repo: str | None = None) -> str:
    """The card of published weights. training: facts with their names. repo: of a hub, for the snippet."""
    name, cfg = entry.name, entry.cfg
    size = " x ".join(map(str, cfg["input_size"][1:]))
    datasets = list(dict.fromkeys(metric.dataset for metric in entry.metrics))
    return "\n".join(
        [
            "---",
            *_header(entry, datasets),
            "---",
            "",
            f"# {name}",
            "",
            f"`{entry.model}` of soft_vit, a softmax-free vision transformer, with weights `{entry.tag}`.",
            "",
            "| | |",
            "|---|---|",
            f"| parameters | {parameters / 1e6:.2f} M |",
            f"| images | {size} pixels |",
            f"| classes | {cfg['num_classes']} |",
            f"| licence | {entry.license or 'not stated'} |",
            f"| file | `{entry.file}` |",
            f"| sha256 | `{entry.sha256}` |",
            *[f"| {fact} | {value} |" for fact, value in training],
            "",
            *_results(entry),
            "## Usage",
            "",
            "```python",
            "import timm",
            "import soft_vit",
            "",
            *_snippet(entry, repo),
            "```",
            "",
            "## Citation",
            "",
            "```bibtex",
            CITATIONS,
            "```",
            "",
        ]
    )


def _header(entry: Entry, datasets: list[str]) -> list[str]:
    # A text in JSON's quotes is one in YAML's, whatever stands in it.
    quoted = json.dumps
    lines = ["tags:", "- image-classification", "- timm", "- soft_vit", "pipeline_tag: image-classification"]
    lines += ["library_name: timm", f"license: {entry.license or 'other'}"]
    for name, values in (("datasets", datasets), ("metrics", sorted({metric.name for metric in entry.metrics}))):
        if values:
            lines += [f"{name}:", *[f"- {quoted(value)}" for value in values]]
    if entry.metrics:
        lines += ["model-index:", f"- name: {quoted(entry.name)}", "  results:"]
    for metric in entry.metrics:
        lines += [
            "  - task:",
            "      type: image-classification",
            "    dataset:",
            f"      name: {quoted(metric.dataset)}",
            f"      type: {quoted(metric.dataset)}",
            "    metrics:",
            f"    - type: {quoted(metric.name)}",
            f"      value: {metric.value}",
        ]
    return lines


def _results(entry: Entry) -> list[str]:
    if not entry.metrics:
        return []
    rows = [f"| {m.dataset} | {m.name} | {m.value:g} | {m.origin}: {m.source} |" for m in entry.metrics]
    return ["## Results", "", "| data set | metric | value | source |", "|---|---|---|---|", *rows, ""]


def _snippet(entry: Entry, repo: str | None) -> list[str]:
    if repo is not None:
        return [f'model = timm.create_model("hf-hub:{repo}", pretrained=True).eval()']
    size, classes = entry.cfg["input_size"], entry.cfg["num_classes"]
    return [
        "model = timm.create_model(",
        f'    "{entry.model}", pretrained=True, num_classes={classes}, img_size={tuple(size[1:])},',
        f'    pretrained_cfg_overlay=dict(file="{entry.file}"),',
        ").eval()",
    ]
