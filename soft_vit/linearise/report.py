"""The report of a run: what was lost in each block and phase, dense features as pictures, and what each size costs.

Letters: B batch, P prefix tokens, N = Y * X tokens of a map, C channels.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.linearise.images import UnlabelledImages
from soft_vit.linearise.train import Linearisation
from soft_vit.probe.cost import machine_description, peak_memory, seconds_of
from soft_vit.text_tables import markdown_table
from soft_vit.weights.files import write_atomically

# Images in the pictures, and those on which features of each size are compared.
SHOWN, COMPARED = 2, 16
# A size is the last one measured if one forward of it takes longer, in seconds.
MAX_SECONDS = 3.0
GROWTH, MAX_SIDE, ROUNDS = 1.4, 4096, 3

MEASURES = ("error", "cosine", "agreement")
PHASES = ("swap", "phase 1", "phase 2", "phase 3")
WHO = ("teacher", "student")
TEMPLATE = Path(__file__).with_name("report.md")

Cost = dict[int, dict[str, tuple[float, int]]]
"""Seconds and peak bytes of teacher and student, by the side of the image."""


def pca_colours(teacher: Tensor, student: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the first three principal components of tokens `[N, C]` of both as RGB `[N, 3]` in [0, 1].

    Directions and ranges are those of the teacher's tokens.
    """
    mean = teacher.mean(0)
    directions = torch.linalg.svd(teacher - mean, full_matrices=False).Vh[:3].mT
    of_teacher, of_student = ((tokens - mean) @ directions for tokens in (teacher, student))
    low, high = (torch.quantile(of_teacher, q, dim=0) for q in (0.02, 0.98))
    scaled = (((x - low) / (high - low)).clamp(0, 1).numpy() for x in (of_teacher, of_student))
    return next(scaled), next(scaled)


@torch.no_grad()
def measure_cost(run: Linearisation) -> Cost:
    """Return what a forward of one image costs at growing sizes, to `MAX_SECONDS` or the end of a GPU's memory."""
    device, patch = next(run.teacher.parameters()).device, math.lcm(*run.teacher.patch_size)
    models, found, side = {"teacher": run.teacher, "student": run.student.eval()}, Cost(), float(run.plan.sizes[0])
    with suppress(torch.OutOfMemoryError):
        while side <= MAX_SIDE:
            size = round(side / patch) * patch
            x = torch.zeros(1, 3, size, size, device=device)
            calls = {name: partial(model, x) for name, model in models.items()}
            peaks = {name: peak_memory(call, device) for name, call in calls.items()}
            rounds = [{name: seconds_of(call, device) for name, call in calls.items()} for _ in range(ROUNDS)]
            found[size] = {name: (median(of[name] for of in rounds), peaks[name]) for name in calls}
            if max(seconds for seconds, _ in found[size].values()) > MAX_SECONDS:
                break
            side *= GROWTH
    return found


def crossover(cost: Cost, quantity: int) -> str:
    """Return from which measured size the student takes less time (quantity 0) or memory (1), at all larger ones."""
    ahead = [size for size in cost if cost[size]["student"][quantity] < cost[size]["teacher"][quantity]]
    behind = max((size for size in cost if size not in ahead), default=0)
    first = min((size for size in ahead if size > behind), default=None)
    return f"at {first} pixels and above" if first else f"at no size up to {max(cost)} pixels"


@torch.no_grad()
def write_report(run: Linearisation, images: UnlabelledImages, folder: str | Path, command: str) -> str:
    """Write `report.md` and its pictures, `features.png` and `curves.png`; return the text.

    Features are compared at one, two and four times the first size of the run. command: the one to show.
    """
    folder, device = Path(folder), next(run.teacher.parameters()).device
    rows, shown = [], []
    for size in (factor * run.plan.sizes[0] for factor in (1, 2, 4)):
        samples = images.samples(COMPARED, size)
        found, grid = run.measure(samples), run.teacher.feat_size(samples)
        rows.append([size, math.prod(grid), *(f"{found[key]:.3f}" for key in MEASURES)])
        for x in samples[:SHOWN, None]:
            b, a = (model(x.to(device))[0].float().cpu()[-math.prod(grid) :] for model in (run.teacher, run.student))
            picture = x[0].permute(1, 2, 0) * torch.tensor(images.std) + torch.tensor(images.mean)
            maps = [colours.reshape(*grid, 3) for colours in pca_colours(b, a)]
            cosine = F.cosine_similarity(a, b, dim=-1).reshape(grid)
            shown.append((size, [picture.clamp(0, 1).numpy(), *maps, cosine.numpy()]))
    cost = measure_cost(run)
    _draw_curves(run.history, cost, folder / "curves.png")
    _draw_features(shown, folder / "features.png")
    text = _text(run, rows, cost, command, len(images))
    write_atomically(folder / "report.md", text.encode())
    return text


def _text(run: Linearisation, rows: list[list[Any]], cost: Cost, command: str, count: int) -> str:
    phases = {name: run.history[name] for name in PHASES if name in run.history}
    blocks = [phases[name]["blocks"] for name in phases]
    whole = [[name, *(f"{of[key]:.3f}" for key in MEASURES)] for name, of in phases.items()]
    by_block = [[block, *(f"{of[block]:.3f}" if block in of else "" for of in blocks)] for block in blocks[0]]
    columns = [(who, place) for place in (0, 1) for who in WHO]
    costs = [[size, *(f"{cost[size][who][i] * (1000, 2**-20)[i]:.1f}" for who, i in columns)] for size in cost]
    softmax = ""
    if "softmax" in run.history:
        found = {name: value for name, value in run.history["softmax"].items() if name != "kept"}
        choices = [[name, ", ".join(map(str, value[0])), f"{value[1]:.3f}"] for name, value in found.items()]
        softmax = "## Blocks that keep softmax\nThe error of the final tokens after the first phase.\n\n"
        softmax += markdown_table(["choice", "blocks", "error"], choices) + "\n\n"
    tables = {
        "whole": markdown_table(["after", *MEASURES], whole),
        "by_block": markdown_table(["block", *phases], by_block),
        "features": markdown_table(["pixels", "tokens", *MEASURES], rows),
        "costs": markdown_table(["pixels", *(f"{who} ({unit})" for unit in ("ms", "MiB") for who in WHO)], costs),
    }
    what = {"teacher": run.teacher.source, "kind": run.kind, "batch": run.plan.batch_size, "count": count}
    what |= {"options": "".join(f", {name}={value}" for name, value in run.options.items())}
    what |= {name: ", ".join(map(str, getattr(run.plan, name))) for name in ("steps", "sizes")}
    what |= {"blocks": len(run.blocks or ()), "all_blocks": len(run.teacher.layers), "compared": min(COMPARED, count)}
    what |= {"time": crossover(cost, 0), "memory": crossover(cost, 1), "ends": _early_ends(run), "softmax": softmax}
    machine = machine_description(next(run.teacher.parameters()).device)
    return TEMPLATE.read_text(encoding="utf-8").format(**tables, **what, command=command, machine=machine)


def _early_ends(run: Linearisation) -> str:
    """Return a paragraph for each phase that did not end with the weights of its last step."""
    ends = zip(PHASES[1:], run.plan.ends, strict=True)
    kept = [(name, end, run.history.get(name, {}).get("step", end)) for name, end in ends]
    text = "{} ended with the weights of step {}, which have the lowest error on sample images.\n\n"
    return "".join(text.format(name.capitalize(), step) for name, end, step in kept if step != end)


def _draw_curves(history: dict[str, Any], cost: Cost, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    errors, *costs = figure.subplots(1, 3)
    for name in PHASES:
        if name in history:
            blocks = history[name]["blocks"]
            errors.plot([int(block) for block in blocks], list(blocks.values()), marker="o", label=f"after {name}")
    errors.set(xlabel="block", ylabel="error / variance", yscale="log", title="attentions")
    errors.locator_params(axis="x", integer=True)
    for place, (axes, label, scale) in enumerate(zip(costs, ("ms", "MiB"), (1000, 2**-20), strict=True)):
        for who in ("teacher", "student"):
            axes.plot(list(cost), [scale * of[who][place] for of in cost.values()], marker="o", label=who)
        axes.set(xlabel="pixels", ylabel=label, xscale="log", title=("time", "memory")[place])
        axes.set_yscale(("log", "linear")[place])
        axes.set_xticks(list(cost), [str(size) for size in cost], fontsize=7)
        axes.minorticks_off()
    for axes in (errors, *costs):
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
    figure.savefig(path, dpi=90)


def _draw_features(shown: Sequence[tuple[int, list[np.ndarray]]], path: Path) -> None:
    from matplotlib.figure import Figure

    titles = ("image", "teacher", "student", "cosine")
    # Cosines near one differ by little.
    low = min(float(pictures[-1].min()) for _, pictures in shown)
    figure = Figure(figsize=(1.5 * len(titles) * SHOWN, 1.6 * len(shown) / SHOWN), layout="constrained")
    grid = figure.subplots(-(-len(shown) // SHOWN), len(titles) * SHOWN, squeeze=False)
    pictures = [(size, *cell) for size, cells in shown for cell in zip(titles, cells, strict=True)]
    for place, (axes, (size, title, picture)) in enumerate(zip(grid.flat, pictures, strict=False)):
        drawn = axes.imshow(picture, interpolation="nearest", vmin=low, vmax=1, cmap="viridis")
        axes.set(xticks=[], yticks=[], title=title if place < grid.shape[1] else "")
        axes.set_ylabel("" if place % grid.shape[1] else f"{size} px")
    figure.colorbar(drawn, ax=grid, shrink=0.6, label="cosine")
    figure.savefig(path, dpi=80)
