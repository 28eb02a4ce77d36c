"""Find softmax in each stage of each model, and measure how the cost of attention grows with the number of tokens N.

python -m studies softmax
python -m studies softmax soft_tiny soft_tiny_pure --out softmax.md

Softmax is searched in what a forward calls. What it normalises follows from which of its dimensions grow with the
image. The growth of the cost is that of counted products. Models are on the meta device, which computes nothing.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from tqdm import tqdm

from benchmarks.timer import log_log_slope
from soft_vit.cli import ArgumentParser
from soft_vit.layers import ATTENTIONS
from soft_vit.models import FAMILY_MODELS, PYRAMID_SIZES, model_name
from soft_vit.models.vit import vit_name
from soft_vit.text_tables import markdown_table
from soft_vit.weights.files import ensure_writable, write_atomically
from studies.calls import FIXED, FULL, HEAD, ROWS, WHOLE, WINDOWS, Calls, calls_of, kind_of_softmax

PAGE = Path(__file__).parents[1] / "docs" / "softmax.md"
# Sides in pixels of the images whose cost the table shows.
COST_SIZES = (224, 896)
# Growth is measured from a model's own size, at least the smaller of these, to sides longer by this factor.
GROWTH = 4

# Exponentials of differences to a maximum, as in softmax that is computed in several steps.
WRITTEN_OUT = "written out"


class Stage(NamedTuple):
    """What each softmax of a stage normalises, and the exponent of N by which products between tokens grow."""

    softmax: tuple[str, ...]
    slope: float | None

    def __str__(self) -> str:
        growth = "" if self.slope is None else f", N^{self.slope:.2f}"
        return " + ".join(self.softmax or ("none",)) + growth


class ModelRow(NamedTuple):
    """A model's stages, the softmax outside of them, parameters, and multiply-adds at each of `COST_SIZES`."""

    model: str
    stages: tuple[Stage, ...]
    outside: tuple[str, ...]
    params: int
    macs: tuple[int, ...]

    @property
    def has_softmax(self) -> bool:
        return bool(self.outside) or any(stage.softmax for stage in self.stages)


def model_groups() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Return names and options of this package's models, by heading; attentions other than SOFT are in tiny models."""
    soft = [f"{kind}_{size}" for kind in ("soft", "soft_norm") for size in PYRAMID_SIZES]
    pure = [f"{name}_pure" for name in soft]
    tiny = [name for name in soft + pure if "tiny" in name]
    kinds = [kind for kind in ATTENTIONS if kind not in ("soft", "soft_norm")]
    return {
        "SOFT": (soft, {}),
        "SOFT without softmax": (pure, {}),
        "SOFT with at most 49 bottleneck tokens, `max_bottleneck=(7, 7)`": (tiny, {"max_bottleneck": (7, 7)}),
        "Other families": (list(FAMILY_MODELS), {}),
        "Each attention in the tiny pyramid": ([model_name(kind, "tiny") for kind in kinds], {}),
        "Each attention in the tiny ViT": ([vit_name(kind, "tiny") for kind in ATTENTIONS], {}),
    }


def measure_model(name: str, **options: Any) -> ModelRow:
    """Return the row of a timm model, by name and options. Raises ValueError for a model without `feature_info`."""
    own = max(COST_SIZES[0], timm.get_pretrained_cfg(name).input_size[-1]) if timm.is_model(name) else COST_SIZES[0]
    found: dict[int, Calls] = {}
    for size in {*COST_SIZES, own, GROWTH * own}:
        model = timm.create_model(name, device="meta", **{"img_size": size, **options})
        found[size] = calls_of(model, (3, size, size))
        if size == own:
            parameters = sum(parameter.numel() for parameter in model.parameters())
    small, large = found[own], found[GROWTH * own]
    if small.stages == [WHOLE]:
        raise ValueError(f"model must have feature_info, which names its stages, got {name}.")
    kinds = defaultdict(set, {stage: {WRITTEN_OUT} for stage in small.written_out})
    for (stage, rows), (_, grown) in zip(small.softmax, large.softmax, strict=True):
        kinds[stage].add(kind_of_softmax(rows, grown))
    stages = []
    for stage in small.stages:
        products = [calls.products[stage] for calls in (small, large)]
        slope = log_log_slope([1, GROWTH**2], products) if all(products) else None
        stages.append(Stage(_strongest_first(kinds[stage]), slope))
    macs = tuple(found[size].flops // 2 for size in COST_SIZES)
    return ModelRow(name, tuple(stages), _strongest_first(kinds[HEAD]), parameters, macs)


def _strongest_first(kinds: set[str]) -> tuple[str, ...]:
    few = sorted(kind for kind in kinds if kind.endswith(" rows"))
    return tuple(kind for kind in (FULL, WINDOWS, WRITTEN_OUT, FIXED, *few, ROWS) if kind in kinds)


def softmax_table(rows: Sequence[ModelRow]) -> str:
    """Return a Markdown table of softmax and growth in each stage, parameters and cost."""
    columns = max((len(row.stages) for row in rows), default=0)
    stages = [f"stage {i + 1}" for i in range(columns)] if columns > 1 else ["attention"] * columns
    cost = [f"FLOPs at {size} (G)" for size in COST_SIZES]
    lines = []
    for row in rows:
        cells = [str(stage) for stage in row.stages] + [""] * (columns - len(row.stages))
        name = f"**{row.model}**" if not row.has_softmax else row.model
        if row.outside:
            name += f" (outside of stages: {', '.join(row.outside)})"
        macs = (f"{count / 1e9:.2f}" for count in row.macs)
        lines.append([name, *cells, f"{row.params / 1e6:.1f}", *macs])
    return markdown_table(["model", *stages, "params (M)", *cost], lines)


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies softmax")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="timm models (default: all of this package)")
    parser.add_argument("--out", type=Path, default=PAGE, help="(default: docs/softmax.md)")
    args = parser.parse_args(argv)
    ensure_writable(args.out)
    groups = {"Models": (args.models, {})} if args.models else model_groups()
    tables = {}
    for title, (names, options) in groups.items():
        tables[title] = [measure_model(name, **options) for name in tqdm(names, desc=title, leave=False)]
    # The text above the first table is kept.
    head = args.out.read_text().partition("\n## ")[0].strip() if args.out.exists() else "# Where softmax is"
    sections = [f"## {title}\n{softmax_table(rows)}" for title, rows in tables.items()]
    versions = f"Measured with torch {torch.__version__}, timm {timm.__version__}."
    write_atomically(args.out, "\n\n".join([head, *sections, f"{versions}\n"]).encode())
    print(f"Written: {args.out}")
