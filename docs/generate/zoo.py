"""The table of all recorded weights, with published accuracies, counted FLOPs and measured rates."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import timm

from benchmarks.timer import Spread
from docs.generate.papers import collection_of
from docs.generate.scatter import rate_cell
from soft_vit.text_tables import markdown_table, read_csv
from soft_vit.weights import RECORDED_WEIGHTS, Entry
from studies.calls import calls_of

COUNTED = ("model", "img_size", "params", "macs", "softmax")
"""The columns of zoo.csv. softmax: the stages that call it."""


def counted_name(entry: Entry) -> str:
    """Return the name of an entry's row in zoo.csv: the model's, or its own if it has other arguments."""
    first = next(other for other in RECORDED_WEIGHTS.values() if other.model == entry.model)
    return entry.model if (entry.options, entry.cfg) == (first.options, first.cfg) else entry.name


def count_model(entry: Entry) -> dict[str, str]:
    """Return the row of zoo.csv of recorded weights, counted in a forward pass on the meta device."""
    config = timm.get_pretrained_cfg(entry.name)
    size = config.input_size
    arguments = {**entry.options, "img_size": size[1:], "num_classes": config.num_classes}
    model = timm.create_model(entry.model, device="meta", **arguments)
    calls = calls_of(model, size)
    stages = sorted({stage for stage, _ in calls.softmax})
    softmax = f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}" if stages else "softmax-free"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    pixels = size[1] if size[1] == size[2] else f"{size[1]} x {size[2]}"
    values = (counted_name(entry), pixels, parameters, calls.flops // 2, softmax)
    return dict(zip(COUNTED, map(str, values), strict=True))


def read_counts(path: Path) -> dict[str, dict[str, str]]:
    """Return the rows of zoo.csv by name, or an empty dictionary if it is missing."""
    return {row["model"]: row for row in read_csv(path)} if path.is_file() else {}


def zoo_table(entries: Sequence[Entry], counts: Mapping[str, Mapping[str, str]], rates: Mapping[str, Spread]) -> str:
    """Return a Markdown table with a row per entry; counts are rows of zoo.csv, rates images per second, by model."""
    header = ["weights", "family", "top-1 %", "on", "params (M)", "FLOPs (G)", "pixels", "softmax", "images / s"]
    rows = []
    for entry in entries:
        counted = counts[counted_name(entry)]
        sizes = f"{int(counted['params']) / 1e6:.1f}", f"{int(counted['macs']) / 1e9:.2f}", counted["img_size"]
        found = [(f"{m.value:.1f}", m.dataset.partition(",")[0]) for m in entry.metrics if m.name == "top-1"]
        others = [f"{m.dataset}: {m.name} {m.value:.1f}" for m in entry.metrics if m.name != "top-1"]
        family, paper, _ = collection_of(entry.model)
        where = f"[{entry.file}]({entry.page})" if entry.sources else "in the repository"
        top1 = found[0] if found else ("", ", ".join(others))
        cells = [f"`{entry.name}`", f"[{family}]({paper})", *top1, *sizes, counted["softmax"]]
        rows.append([*cells, rate_cell(rates.get(counted["model"])), entry.license or "not stated", where])
    return markdown_table([*header, "licence", "file"], rows)
