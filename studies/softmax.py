"""Write where softmax is in each model, stage by stage, and how attention grows with the number of tokens N.

python -m studies softmax
python -m studies softmax soft_tiny soft_tiny_pure --out ledger.md

Both are measured: softmax is looked for in the model's exported graph, and what it normalises shows in what grows with
the image; the growth of cost is that of counted products. Nothing is computed: the models are on the meta device.
"""

import argparse
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
from soft_vit.layers import ATTENTIONS
from soft_vit.models import FAMILY_MODELS, PYRAMID_SIZES, model_name
from soft_vit.models.base import require_known
from soft_vit.models.eval_mode import eval_mode
from soft_vit.models.vit import vit_name
from soft_vit.ops.flops import flop_counter
from soft_vit.text_tables import error_cell, markdown_table
from soft_vit.weights.files import ensure_writable, write_atomically

PAGE = Path(__file__).parents[1] / "docs" / "softmax.md"
# Pixels to a side of the images whose cost is shown.
SHOWN = (224, 896)
# The graph is of a model's own size, at least the smaller of these; growth is from there to sides so much longer.
GROWTH = 4

# Products by a weight of the model; all other products are between tokens, or sums over tokens.
WEIGHT_PRODUCTS = {torch.ops.aten.convolution, torch.ops.aten.addmm, torch.ops.aten.mm}

# What a softmax normalises, the strongest first.
FULL, WINDOWS, FIXED, ROWS = "full", "windows", "rows of fixed length", "one row"
# Exponentials less their maximum, by which softmax is written out in steps.
WRITTEN_OUT = "written out"

OUTSIDE = "outside"


class Rows(NamedTuple):
    """A softmax in a graph: how many sets of rows there are, how many rows in each, and how long they are."""

    sets: int
    rows: int
    length: int


@dataclass(frozen=True)
class StageLine:
    """A stage. softmax: kinds of softmax in it, the strongest first; slope: products between tokens grow as N^slope."""

    softmax: tuple[str, ...]
    slope: float | None

    def __str__(self) -> str:
        growth = "" if self.slope is None else f", N^{self.slope:.2f}"
        return " + ".join(self.softmax or ("none",)) + growth


@dataclass(frozen=True)
class Ledger:
    """A model's stages, the softmax outside of them, parameters, and multiply-adds at each size of `SHOWN`."""

    model: str
    stages: tuple[StageLine, ...]
    outside: tuple[str, ...]
    params: int
    macs: tuple[int, ...]

    @property
    def has_softmax(self) -> bool:
        return bool(self.outside) or any(stage.softmax for stage in self.stages)


def model_groups() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Return models of this package and their options, by heading; of an attention with several sizes, tiny."""
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
    """A layer that attentions call instead of reading its weight, so that its product counts as one by a weight."""


def softmax_ledger(name: str, **options: Any) -> Ledger:
    """Return the ledger of a timm model with stages, by name and options; raise ValueError without `feature_info`."""
    own = max(SHOWN[0], timm.get_pretrained_cfg(name).input_size[-1]) if timm.is_model(name) else SHOWN[0]
    models = {
        size: timm.create_model(name, device="meta", **{"img_size": size, **options}).eval()
        for size in {*SHOWN, own, GROWTH * own}
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
        lines.append(StageLine(_strongest_first(kinds[stage]), slope))
    return Ledger(
        name,
        tuple(lines),
        _strongest_first(kinds[OUTSIDE]),
        sum(parameter.numel() for parameter in models[own].parameters()),
        tuple(costs[size].macs for size in SHOWN),
    )


def stage_modules(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the modules of each stage, by the stage's name; modules of one resolution are one stage."""
    info = getattr(model, "feature_info", None)
    if not info:
        raise ValueError(f"{type(model).__name__} must have feature_info, which names its stages.")
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
    """Return every softmax in the graph of a model for one image, with its stage, and the stages that write one out.

    RuntimeError for an operation in the graph that is not torch's own: it may hide a softmax.
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
            found.append((stage, _rows(target, *args)))
        elif target.startswith("aten.exp.") and _is_less_a_maximum(node.args[0]):
            written_out.add(stage)
    return found, written_out


def _is_less_a_maximum(node: torch.fx.Node) -> bool:
    """Return whether a node is a difference to a maximum, or to the logarithm of a sum of exponentials."""
    if not str(node.target).startswith("aten.sub"):
        return False
    # Between them are changes of shape; a few steps do.
    nodes = [node.args[1]]
    for step in nodes:
        if re.match(r"aten\.(a?max|maximum|logsumexp)\b", str(getattr(step, "target", ""))):
            return True
        if isinstance(step, torch.fx.Node) and len(nodes) < 30:
            nodes += step.all_input_nodes
    return False


def _rows(function: str, *args: Any) -> Rows:
    """Return the rows of a call of softmax, of a tensor and an axis, or of fused attention, of queries and keys."""
    shape = list(args[0].shape)
    if "softmax" not in function:
        return Rows(math.prod(shape[:-2]), shape[-2], args[1].shape[-2])
    length = shape.pop(args[1])
    return Rows(math.prod(shape[:-1]), shape[-1] if shape else 1, length)


class SoftmaxCalls(TorchFunctionMode):
    """Records every softmax that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Rows] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in ("softmax", "log_softmax"):
            self.found.append(_rows(name, args[0], kwargs.get("dim", args[-1])))
        elif name == "scaled_dot_product_attention":
            self.found.append(_rows(name, *args[:2]))
        return func(*args, **kwargs)


def _strongest_first(kinds: set[str]) -> tuple[str, ...]:
    few = sorted(kind for kind in kinds if kind.endswith(" rows"))
    return tuple(kind for kind in (FULL, WINDOWS, WRITTEN_OUT, FIXED, *few, ROWS) if kind in kinds)


def kind_of_softmax(small: Rows, large: Rows) -> str:
    """Return what a softmax normalises, from its rows for one image and for a larger one."""
    if large.length == small.length:
        return FIXED if large.sets == small.sets else WINDOWS
    if large.rows == small.rows:
        return ROWS if small.rows == 1 else f"{small.rows} rows"
    return FULL


class Cost(NamedTuple):
    """Multiply-adds for one image, those of products between tokens by stage, and softmax in the order of calls."""

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
        # A ModuleList is never called itself.
        children = model.get_submodule(path).named_children()
        return sum(between_tokens(f"{path}.{child}") for child, _ in children)

    products = {stage: sum(map(between_tokens, modules)) for stage, modules in stages.items()}
    return Cost(sum(counts.get("Global", {}).values()) // 2, products, calls.found)


def ledgers(names: Iterable[str], **options: Any) -> tuple[list[Ledger], dict[str, str]]:
    """Return the ledgers of the models that could be measured, with options, and the errors of the others."""
    found, errors = [], {}
    for name in tqdm(list(names), desc="models", leave=False):
        try:
            found.append(softmax_ledger(name, **options))
        except Exception as error:
            # A model that fails is a result and does not end the others.
            errors[name] = error_cell(error)
    return found, errors


def ledger_table(rows: Sequence[Ledger], errors: dict[str, str]) -> str:
    """Return a Markdown table: softmax and growth of each stage, size and cost."""
    columns = max((len(row.stages) for row in rows), default=0)
    stages = [f"stage {i + 1}" for i in range(columns)] if columns > 1 else ["attention"] * columns
    cost = [f"FLOPs at {size} (G)" for size in SHOWN]
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
    parser = argparse.ArgumentParser(
        "python -m studies softmax", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="timm models (default: all of this package)")
    parser.add_argument("--out", type=Path, default=PAGE, help="(default: docs/softmax.md)")
    args = parser.parse_args(argv)
    for name in args.models:
        require_known(name)
    ensure_writable(args.out)
    groups = {"Models": (args.models, {})} if args.models else model_groups()
    tables = {title: ledgers(names, **options) for title, (names, options) in groups.items()}
    # What stands above the first table explains the page.
    head = args.out.read_text().partition("\n## ")[0].strip() if args.out.exists() else "# Where softmax is"
    sections = [f"## {title}\n{ledger_table(*found)}" for title, found in tables.items()]
    versions = f"Measured with torch {torch.__version__}, timm {timm.__version__}."
    write_atomically(args.out, "\n\n".join([head, *sections, f"{versions}\n"]).encode())
    print(f"Written: {args.out}")
    for _, errors in tables.values():
        for name, error in errors.items():
            print(f"Not measured: {name} ({error})")
