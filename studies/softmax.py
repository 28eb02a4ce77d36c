"""Find softmax in each stage of each model, and measure how the cost of attention grows with the number of tokens N.

python -m studies softmax
python -m studies softmax soft_tiny soft_tiny_pure --out softmax.md

Softmax is searched in the model's exported graph. What it normalises follows from which of its dimensions grow with the
image. The growth of the cost is that of counted products. Models are on the meta device, which computes nothing.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from benchmarks.timer import log_log_slope
from soft_vit.cli import ArgumentParser
from soft_vit.layers import ATTENTIONS
from soft_vit.models import FAMILY_MODELS, PYRAMID_SIZES, model_name
from soft_vit.models.base import require_known
from soft_vit.models.eval_mode import eval_mode
from soft_vit.models.vit import vit_name
from soft_vit.ops.flops import flop_counter
from soft_vit.text_tables import error_cell, markdown_table
from soft_vit.weights.files import ensure_writable, write_atomically

PAGE = Path(__file__).parents[1] / "docs" / "softmax.md"
# Sides in pixels of the images whose cost the table shows.
COST_SIZES = (224, 896)
# The graph is exported at the model's own size, at least the smaller of these. Growth is measured from there to images
# whose sides are longer by this factor.
GROWTH = 4

# Products with a weight of the model. All other products are between tokens, or sums over tokens.
WEIGHT_PRODUCTS = {torch.ops.aten.convolution, torch.ops.aten.addmm, torch.ops.aten.mm}

# What a softmax normalises, from most to least of the tokens.
FULL, WINDOWS, FIXED, ROWS = "full", "windows", "rows of fixed length", "one row"
# Exponentials of differences to a maximum, as in softmax that is computed in several steps.
WRITTEN_OUT = "written out"

# The name for what is in no stage.
OUTSIDE = "outside"


class Rows(NamedTuple):
    """The shape of a softmax: the number of sets of rows, the number of rows in a set, the length of a row."""

    sets: int
    rows: int
    length: int


@dataclass(frozen=True)
class Stage:
    """What each softmax of a stage normalises, and the exponent of N by which products between tokens grow."""

    softmax: tuple[str, ...]
    slope: float | None

    def __str__(self) -> str:
        growth = "" if self.slope is None else f", N^{self.slope:.2f}"
        return " + ".join(self.softmax or ("none",)) + growth


@dataclass(frozen=True)
class ModelRow:
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
    kinds = [kind for kind in ATTENTIONS if kind not in ("soft", "soft_norm")]
    return {
        "SOFT": (soft, {}),
        "SOFT without softmax": (pure, {}),
        "SOFT with at most 49 bottleneck tokens, `max_bottleneck=(7, 7)`": (
            [name for name in soft + pure if "tiny" in name],
            {"max_bottleneck": (7, 7)},
        ),
        "Other families": (list(FAMILY_MODELS), {}),
        "Each attention in the tiny pyramid": ([model_name(kind, "tiny") for kind in kinds], {}),
        "Each attention in the tiny ViT": ([vit_name(kind, "tiny") for kind in ATTENTIONS], {}),
    }


class CalledLinear(nn.Linear):
    """A Linear that attentions call, as they read the weight of plain ones, whose products would count as of tokens."""


def measure_model(name: str, **options: Any) -> ModelRow:
    """Return the row of a timm model, by name and options. Raises ValueError for a model without `feature_info`."""
    own = max(COST_SIZES[0], timm.get_pretrained_cfg(name).input_size[-1]) if timm.is_model(name) else COST_SIZES[0]
    models = {
        size: timm.create_model(name, device="meta", **{"img_size": size, **options}).eval()
        for size in {*COST_SIZES, own, GROWTH * own}
    }
    for module in (module for model in models.values() for module in model.modules()):
        if type(module) is nn.Linear:
            module.__class__ = CalledLinear
    stages, kinds = stage_modules(models[own]), defaultdict(set)
    costs = {size: _costs(model, size, stages) for size, model in models.items()}
    grown = costs[own], costs[GROWTH * own]
    found, written_out = _softmax_of_graph(models[own], own, stages)
    # Calls are in the order of the graph.
    for (stage, small), large in zip(found, grown[1].softmax, strict=True):
        kinds[stage].add(kind_of_softmax(small, large))
    for stage in written_out:
        kinds[stage].add(WRITTEN_OUT)
    lines = []
    for stage in stages:
        products = [cost.products[stage] for cost in grown]
        slope = log_log_slope([1, GROWTH**2], products) if all(products) else None
        lines.append(Stage(_strongest_first(kinds[stage]), slope))
    return ModelRow(
        name,
        tuple(lines),
        _strongest_first(kinds[OUTSIDE]),
        sum(parameter.numel() for parameter in models[own].parameters()),
        tuple(costs[size].macs for size in COST_SIZES),
    )


def stage_modules(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the module names of each stage by the name of the first. Modules of one resolution are one stage."""
    info = getattr(model, "feature_info", None)
    if not info:
        raise ValueError(f"model must have feature_info, which names its stages, got {type(model).__name__}.")
    by_reduction: dict[int, list[str]] = defaultdict(list)
    for stage in info:
        by_reduction[stage["reduction"]].append(stage["module"])
    return {modules[0]: tuple(modules) for modules in by_reduction.values()}


def _stage_of(path: str, stages: dict[str, tuple[str, ...]]) -> str:
    for stage, modules in stages.items():
        if any(path == module or path.startswith(f"{module}.") for module in modules):
            return stage
    return OUTSIDE


def _softmax_of_graph(
    model: nn.Module, size: int, stages: dict[str, tuple[str, ...]]
) -> tuple[list[tuple[str, Rows]], set[str]]:
    """Return each softmax in the graph of a model for one image with its stage, and the stages with one written out.

    Raises RuntimeError for an operation in the graph that is not torch's own, as it may hide a softmax.
    """
    graph = torch.export.export(model, (torch.empty(1, 3, size, size, device="meta"),)).graph
    found, written_out = [], set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        target = str(node.target)
        if not re.match(r"aten\.|<built-in|_operator|sym_", target):
            raise RuntimeError(f"The graph may hide a softmax in the operation {target}.")
        modules = list(node.meta.get("nn_module_stack", {"": ("",)}).values())
        stage = _stage_of(re.sub(r"^L\['self'\]\.?", "", modules[-1][0]), stages)
        if "softmax" in target or "dot_product_attention" in target:
            args = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
            found.append((stage, rows_of(target, *args)))
        elif target.startswith("aten.exp.") and _is_less_a_maximum(node.args[0]):
            written_out.add(stage)
    return found, written_out


def _is_less_a_maximum(node: torch.fx.Node) -> bool:
    """Return whether a node subtracts a maximum, or the logarithm of a sum of exponentials."""
    if not str(node.target).startswith("aten.sub"):
        return False
    # There may be changes of shape in between. A few steps back suffice.
    nodes = [node.args[1]]
    for step in nodes:
        if re.match(r"aten\.(a?max|maximum|logsumexp)\b", str(getattr(step, "target", ""))):
            return True
        if isinstance(step, torch.fx.Node) and len(nodes) < 30:
            nodes += step.all_input_nodes
    return False


def rows_of(function: str, *args: Any) -> Rows:
    """Return the rows of a call: softmax of a tensor over an axis, or fused attention of queries and keys."""
    shape = list(args[0].shape)
    if "softmax" not in function:
        return Rows(math.prod(shape[:-2]), shape[-2], args[1].shape[-2])
    length = shape.pop(args[1])
    return Rows(math.prod(shape[:-1]), shape[-1] if shape else 1, length)


class SoftmaxCalls(TorchFunctionMode):
    """Record the rows of every softmax that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Rows] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in ("softmax", "log_softmax"):
            self.found.append(rows_of(name, args[0], kwargs.get("dim", args[-1])))
        elif name == "scaled_dot_product_attention":
            self.found.append(rows_of(name, *args[:2]))
        return func(*args, **kwargs)


def _strongest_first(kinds: set[str]) -> tuple[str, ...]:
    few = sorted(kind for kind in kinds if kind.endswith(" rows"))
    return tuple(kind for kind in (FULL, WINDOWS, WRITTEN_OUT, FIXED, *few, ROWS) if kind in kinds)


def kind_of_softmax(small: Rows, large: Rows) -> str:
    """Return what a softmax normalises, from its rows for an image and for a larger one."""
    if large.length == small.length:
        return FIXED if large.sets == small.sets else WINDOWS
    if large.rows == small.rows:
        return ROWS if small.rows == 1 else f"{small.rows} rows"
    return FULL


class Cost(NamedTuple):
    """Multiply-adds for one image, those of products between tokens by stage, and each softmax in order of calls."""

    macs: int
    products: dict[str, int]
    softmax: list[Rows]


def _costs(model: nn.Module, size: int, stages: dict[str, tuple[str, ...]]) -> Cost:
    with eval_mode(model), torch.no_grad(), flop_counter() as counter, SoftmaxCalls() as calls:
        model(torch.empty(1, 3, size, size, device="meta"))
    counts, root = counter.get_flop_counts(), type(model).__name__

    def between_tokens(path: str) -> int:
        if f"{root}.{path}" in counts:
            ops = counts[f"{root}.{path}"]
            return sum(count for op, count in ops.items() if op not in WEIGHT_PRODUCTS) // 2
        # Counters skip a ModuleList, as it is never called.
        children = model.get_submodule(path).named_children()
        return sum(between_tokens(f"{path}.{child}") for child, _ in children)

    products = {stage: sum(map(between_tokens, modules)) for stage, modules in stages.items()}
    return Cost(sum(counts.get("Global", {}).values()) // 2, products, calls.found)


def measure_models(names: Iterable[str], **options: Any) -> tuple[list[ModelRow], dict[str, str]]:
    """Return the rows of models with the same options, and the errors of those that cannot be measured."""
    found, errors = [], {}
    for name in tqdm(list(names), desc="models", leave=False):
        try:
            found.append(measure_model(name, **options))
        except Exception as error:
            # The table shows the error of a model that fails, and the others continue.
            errors[name] = error_cell(error)
    return found, errors


def softmax_table(rows: Sequence[ModelRow], errors: dict[str, str]) -> str:
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
    width = columns + len(cost) + 1
    lines += [[name, error, *[""] * (width - 1)] for name, error in errors.items()]
    return markdown_table(["model", *stages, "params (M)", *cost], lines)


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies softmax")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="timm models (default: all of this package)")
    parser.add_argument("--out", type=Path, default=PAGE, help="(default: docs/softmax.md)")
    args = parser.parse_args(argv)
    for name in args.models:
        require_known(name)
    ensure_writable(args.out)
    groups = {"Models": (args.models, {})} if args.models else model_groups()
    tables = {title: measure_models(names, **options) for title, (names, options) in groups.items()}
    # The text above the first table is kept.
    head = args.out.read_text().partition("\n## ")[0].strip() if args.out.exists() else "# Where softmax is"
    sections = [f"## {title}\n{softmax_table(*found)}" for title, found in tables.items()]
    versions = f"Measured with torch {torch.__version__}, timm {timm.__version__}."
    write_atomically(args.out, "\n\n".join([head, *sections, f"{versions}\n"]).encode())
    print(f"Written: {args.out}")
    for _, errors in tables.values():
        for name, error in errors.items():
            print(f"Not measured: {name} ({error})")
