"""Find softmax in every architecture that timm registers, and how products between tokens grow with their number N.

python -m studies timm            measures the models that studies/results/timm.csv lacks
python -m docs.generate           writes docs/timm.md from it

Each model runs on the meta device, which computes nothing, at its own size and at twice that. A dispatch mode sees each
softmax and each product with its shapes, also inside fused attention.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import timm
from torch import Tensor
from tqdm import tqdm

from benchmarks.timer import log_log_slope
from soft_vit.cli import ArgumentParser
from soft_vit.text_tables import csv_table, error_cell, markdown_table, read_csv
from soft_vit.weights.files import write_atomically
from studies.calls import calls_of, kind_of_softmax

TABLE = Path(__file__).parent / "results" / "timm.csv"
GROWTH = 2
"""Sides of the larger image over those of the model's own."""
# What a softmax is called in a model for one size only.
ONE_SIZE = "at its only size"


class Row(NamedTuple):
    """A line of the table.

    params: in millions. softmax: `stage: what it normalises` for each stage with softmax. products: whether there are
    any between activations. exponent: of N in these products. error: why the larger or both images failed.
    """

    model: str
    family: str
    size: str = ""
    params: str = ""
    softmax: str = ""
    products: str = ""
    exponent: str = ""
    error: str = ""
    timm: str = timm.__version__


def measure(name: str) -> Row:
    """Return the row of a timm model by name."""
    model = timm.create_model(name, device="meta")
    channels, *sides = model.default_cfg["input_size"]
    larger = [GROWTH * side for side in sides]
    own, reason = calls_of(model, (channels, *sides)), ""
    try:
        grown = calls_of(model, (channels, *larger))
    except Exception:
        grown = None
    if grown is None or own.products.total() == grown.products.total() > 0:
        # The model is built for one size, or resizes every image to it.
        try:
            grown = calls_of(timm.create_model(name, device="meta", img_size=larger), (channels, *larger))
        except Exception as error:
            grown, reason = own, error_cell(error)[:100]
    kinds: dict[str, set[str]] = defaultdict(set)
    for (stage, small), (_, large) in zip(own.softmax, grown.softmax, strict=True):
        kinds[stage].add(ONE_SIZE if reason else kind_of_softmax(small, large))
    products = [calls.products.total() for calls in (own, grown)]
    slope = log_log_slope([1, GROWTH**2], products) if products[0] and not reason else None
    cells = {"size": " x ".join(map(str, sides)), "products": "yes" if products[0] else "", "error": reason}
    cells["params"] = f"{sum(map(Tensor.numel, model.parameters())) / 1e6:.1f}"
    cells["softmax"] = "; ".join(f"{stage}: {' + '.join(sorted(kinds[stage]))}" for stage in sorted(kinds))
    return _row(name, **cells, exponent="" if slope is None else f"{slope:.2f}")


def _row(name: str, **cells: str) -> Row:
    return Row(name, timm.model_entrypoint(name).__module__.removeprefix("timm.models."), **cells)


def read_rows(path: Path = TABLE) -> dict[str, Row]:
    """Return the rows of a table by model."""
    return {cells["model"]: Row(**cells) for cells in read_csv(path)} if path.exists() else {}


def models_tables(rows: Sequence[Row]) -> list[str]:
    """Return Markdown tables: groups, and all models, softmax-free ones with products between tokens first."""
    measured = [row for row in rows if row.params]
    groups = {
        "softmax-free": [r for r in measured if not r.softmax and r.products],
        "softmax-free, no products": [r for r in measured if not r.softmax and not r.products],
        "softmax": [r for r in measured if r.softmax],
        "not measured": [r for r in rows if not r.params],
    }
    summary = [[name, len(own), ", ".join(sorted({r.family for r in own}))] for name, own in groups.items() if own]
    summary.append(["all", len(rows), f"of timm {rows[0].timm}"])
    named = [(r, name) for name, own in groups.items() for r in own]
    lines = [[r.model, r.family, name, r.softmax, r.exponent, r.params, r.size, r.error] for r, name in named]
    header = ["model", "family", "softmax", "stage: rows", "exponent of N", "params (M)", "pixels", "error"]
    return [markdown_table(["group", "architectures", "timm's files"], summary), markdown_table(header, lines)]


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies timm")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="(default: every model of timm)")
    parser.add_argument("--out", type=Path, default=TABLE, help="(default: studies/results/timm.csv)")
    args = parser.parse_args(argv)
    own = [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("timm.")]
    rows = read_rows(args.out)
    for name in tqdm([name for name in args.models or own if name not in rows], unit="model"):
        try:
            rows[name] = measure(name)
        except Exception as error:
            # The table shows why a model failed, and the others continue.
            rows[name] = _row(name, error=error_cell(error)[:100])
        write_atomically(args.out, csv_table(Row._fields, sorted(rows.values())).encode())
