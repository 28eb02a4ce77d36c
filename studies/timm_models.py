"""Find softmax in every architecture that timm registers, and how products between tokens grow with their number N.

python -m studies timm            measures the models that studies/results/timm.csv lacks
python -m docs.generate           writes docs/timm.md from it

Each model runs on the meta device, which computes nothing, at its own size and at twice that. A dispatch mode sees each
softmax and each product with its shapes, also inside fused attention.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from tqdm import tqdm

from soft_vit.cli import ArgumentParser
from soft_vit.text_tables import csv_table, error_cell, markdown_table
from soft_vit.weights.files import write_atomically
from studies.softmax import Rows, kind_of_softmax, rows_of

TABLE = Path(__file__).parent / "results" / "timm.csv"
GROWTH = 2
"""Sides of the larger image over those of the model's own."""
# What comes after all stages, and what a softmax is called in a model for one size only.
HEAD, ONE_SIZE = "head", "at its only size"
# Meta tensors compute the shapes of these in Python, at length.
ELEMENTWISE = {"add", "div", "gelu", "hardswish", "mul", "relu", "sigmoid", "silu", "sub"}
NORMS = {"_native_batch_norm_legit_no_training", "native_batch_norm", "native_layer_norm"}

PAGE = """# Softmax-free models of timm
Of the {count} architectures that timm {version} registers, {free} multiply activations by each other, as attention
does, and have no softmax. Each ran on tensors without data, at two sizes. [Where softmax is](softmax.md) answers the
same for the models of this package.

{summary}

*Softmax-free* means no softmax at all, not even in gates or in the head. *Stage: rows* names each stage with softmax,
and what it normalises:

| | |
|---|---|
| `full` | rows whose number and length grow with the image; also windows that are a share of the image |
| `windows` | more sets of rows of the same length |
| `rows of fixed length` | channels, branches, or a fixed number of keys |
| `one row`, `16 rows` | a fixed number of rows over all tokens, as in pooling, or over tokens for each channel |

Stages are those of timm's `feature_info`, numbered by resolution. `head` follows the last, and a model without stages
is `model`. The *exponent of N* is that of products between activations, from the model's own size to twice that, N
being the number of pixels. Attention as sums of elementwise products, as in SwiftFormer, has none.

{table}

`python -m studies timm` measures what `studies/results/timm.csv` lacks; all of it took 12 minutes on one core of an
Intel Xeon. `python -m docs.generate` writes this page.
"""


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


class Calls(TorchDispatchMode):
    """Records the rows of each softmax with its stage, and counts products of two activations.

    A stage ends with its last module of `feature_info`. Stages are numbered from 1 by their resolution.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.softmax: list[tuple[str, Rows]] = []
        self.products = 0
        self.weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        ends = {info["module"]: info["reduction"] for info in getattr(model, "feature_info", None) or ()}
        modules = dict(model.named_modules())
        self.ends = [(modules[name], reduction) for name, reduction in ends.items() if name in modules]
        self.reductions = sorted({reduction for _, reduction in self.ends})
        self.ended = 0

    def __enter__(self) -> "Calls":
        self.hooks = [module.register_forward_hook(self._end) for module, _ in self.ends]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self.hooks:
            hook.remove()

    def _end(self, *_: Any) -> None:
        self.ended += 1

    @property
    def stage(self) -> str:
        if self.ended >= len(self.ends):
            return HEAD if self.ends else "model"
        return str(1 + self.reductions.index(self.ends[self.ended][1]))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        alike = len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
        if name in ELEMENTWISE and alike and tensors[0].is_floating_point():
            return torch.empty_like(tensors[0])
        if name in NORMS:
            return torch.empty_like(args[0]), *[args[0].new_empty(0)] * 2
        attention = "dot_product_attention" in name
        if attention or "softmax" in name:
            self.softmax.append((self.stage, rows_of(name, *args)))
        if attention:
            q, k, v = args[:3]
            self.products += math.prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        elif name in ("bmm", "baddbmm"):
            a, b = args[-2:]
            if not {a.untyped_storage()._cdata, b.untyped_storage()._cdata} & self.weights:
                self.products += math.prod(a.shape) * b.shape[-1]
        return func(*args, **(kwargs or {}))


def _calls(model: nn.Module, size: Sequence[int]) -> Calls:
    with torch.no_grad(), Calls(model) as calls:
        model(torch.empty(1, *size, device="meta"))
    return calls


def measure(name: str) -> Row:
    """Return the row of a timm model by name."""
    model = timm.create_model(name, device="meta").eval()
    channels, *sides = model.default_cfg["input_size"]
    larger = [GROWTH * side for side in sides]
    own, reason = _calls(model, (channels, *sides)), ""
    try:
        grown = _calls(model, (channels, *larger))
    except Exception:
        grown = None
    if grown is None or own.products == grown.products > 0:
        # The model is built for one size, or resizes every image to it.
        try:
            grown = _calls(timm.create_model(name, device="meta", img_size=larger).eval(), (channels, *larger))
        except Exception as error:
            grown, reason = own, error_cell(error)[:100]
    kinds: dict[str, set[str]] = defaultdict(set)
    for (stage, small), (_, large) in zip(own.softmax, grown.softmax, strict=True):
        kinds[stage].add(ONE_SIZE if reason else kind_of_softmax(small, large))
    slope = math.log(grown.products / own.products, GROWTH**2) if own.products and not reason else None
    return _row(
        name,
        size=" x ".join(map(str, sides)),
        params=f"{sum(map(Tensor.numel, model.parameters())) / 1e6:.1f}",
        softmax="; ".join(f"{stage}: {' + '.join(sorted(kinds[stage]))}" for stage in sorted(kinds)),
        products="yes" if own.products else "",
        exponent="" if slope is None else f"{slope:.2f}",
        error=reason,
    )


def _row(name: str, **cells: str) -> Row:
    family = timm.model_entrypoint(name).__module__.removeprefix("timm.models.")
    return Row(name, family, **cells)


def read_rows(path: Path = TABLE) -> dict[str, Row]:
    """Return the rows of a table by model."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {cells["model"]: Row(**cells) for cells in csv.DictReader(file)}


def models_page(rows: Sequence[Row]) -> str:
    """Return the page of all models, softmax-free ones with products between tokens first."""
    measured = [row for row in rows if row.params]
    groups = {
        "softmax-free": [r for r in measured if not r.softmax and r.products],
        "softmax-free, no products": [r for r in measured if not r.softmax and not r.products],
        "softmax": [r for r in measured if r.softmax],
        "not measured": [r for r in rows if not r.params],
    }
    summary = [
        [name, len(found), ", ".join(sorted({r.family for r in found}))] for name, found in groups.items() if found
    ]
    lines = [
        [r.model, r.family, name, r.softmax, r.exponent, r.params, r.size, r.error]
        for name, found in groups.items()
        for r in found
    ]
    header = ["model", "family", "softmax", "stage: rows", "exponent of N", "params (M)", "pixels", "error"]
    return PAGE.format(
        count=len(rows),
        free=len(groups.get("softmax-free", [])),
        version=rows[0].timm,
        summary=markdown_table(["group", "architectures", "timm's files"], summary),
        table=markdown_table(header, lines),
    )


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
