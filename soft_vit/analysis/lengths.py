"""Memory and time against the number of tokens: one image, 12 layers, d = 384, 12 heads (SOFT, arXiv 2110.11945)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from soft_vit.analysis.harness import log_log_slope, require_device, seconds_of
from soft_vit.analysis.memory import training_memory
from soft_vit.layers import PostNormBlock, attention_class
from soft_vit.text_tables import error_cell, markdown_table

DIM, NUM_HEADS, DEPTH, SIDE = 384, 12, 12, 28

# Options that keep the number of reduced tokens at 49 as the map grows.
FIXED_TOKENS = {
    "soft": {"max_bottleneck": (7, 7)},
    "soft_norm": {"max_bottleneck": (7, 7)},
    "spatial_reduction": {"linear": True},
}


@dataclass
class Curve:
    """One attention: bytes and seconds of a training step for each number of tokens; no seconds if not timed."""

    attention: str
    lengths: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def memory_slope(self) -> float:
        return log_log_slope(self.lengths, self.memory)

    @property
    def time_slope(self) -> float | None:
        return log_log_slope(self.lengths, self.seconds) if self.seconds else None


class Stack(nn.Module):
    """`depth` blocks of one attention on tokens `[B, N, dim]` of one map."""

    def __init__(self, attention: str, feat_size: tuple[int, int], depth: int = DEPTH, device=None) -> None:
        super().__init__()
        cls, options = attention_class(attention), FIXED_TOKENS.get(attention, {})
        self.feat_size = feat_size
        self.blocks = nn.ModuleList(
            PostNormBlock(
                DIM, cls(DIM, NUM_HEADS, feat_size=feat_size, sr_ratio=4, device=device, **options), device=device
            )
            for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, self.feat_size)
        return x


def measure_lengths(
    attention: str,
    multiples: Sequence[int] = range(1, 9),
    *,
    device: str | torch.device = "cpu",
    timed: bool = True,
    rounds: int = 3,
    depth: int = DEPTH,
) -> Curve:
    """Measure a training step of one image on maps of 28 x 28p tokens, N = 784 p, for each p in multiples.

    Memory is measured by `training_memory`; time is the median over rounds.
    """
    curve = Curve(attention)
    for multiple in multiples:
        feat_size = (SIDE, SIDE * multiple)
        count = feat_size[0] * feat_size[1]
        curve.lengths.append(count)
        stack = partial(Stack, attention, feat_size, depth)
        curve.memory.append(training_memory(stack, (1, count, DIM), device))
        if timed:
            step = partial(_step, stack(device=device), torch.randn(1, count, DIM, device=device))
            step()
            curve.seconds.append(median(seconds_of(step, device) for _ in range(rounds)))
    return curve


def _step(stack: nn.Module, x: torch.Tensor) -> None:
    stack(x).sum().backward()
    stack.zero_grad(set_to_none=True)


def measure_all(
    attentions: Sequence[str],
    *,
    device: str | torch.device = "cpu",
    rounds: int = 3,
    **kwargs: Any,
) -> tuple[list[Curve], dict[str, str]]:
    """Curves of the attentions that ran, and the errors of those that failed.

    rounds and kwargs go to `measure_lengths`. Raises ValueError for an unknown attention, an unavailable device, and
    rounds below 1.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; give at least 1.")
    for attention in attentions:
        attention_class(attention)
    require_device(device)
    curves, errors = [], {}
    for attention in tqdm(attentions, desc="lengths", leave=False):
        try:
            curves.append(measure_lengths(attention, device=device, rounds=rounds, **kwargs))
        except Exception as error:
            # A failure of one kind, such as out of memory, is a result and does not end the others.
            errors[attention] = error_cell(error)
    return curves, errors


def lengths_table(curves: Sequence[Curve], errors: dict[str, str]) -> str:
    """A Markdown table of memory at both ends and of the fitted exponents."""
    rows = []
    for curve in curves:
        slope = "not measured" if curve.time_slope is None else f"{curve.time_slope:.2f}"
        ends = (f"{curve.memory[i] / 2**20:.0f}" for i in (0, -1))
        rows.append([curve.attention, *ends, f"{curve.memory_slope:.2f}", slope])
    rows += [[attention, error, "", "", ""] for attention, error in errors.items()]
    return markdown_table(["attention", "MB at the shortest", "MB at the longest", "memory ~ N^", "time ~ N^"], rows)


def plot_lengths(curves: Sequence[Curve], path: Path) -> list[Path]:
    """Draw memory, and time if measured, against N on logarithmic axes; writes path.png and path.svg."""
    from matplotlib.figure import Figure

    panels = [("peak memory of a training step (MB)", [[b / 2**20 for b in curve.memory] for curve in curves])]
    if any(curve.seconds for curve in curves):
        panels.append(("training step (s)", [curve.seconds for curve in curves]))
    figure = Figure(figsize=(9.5 * len(panels), 5.5))
    for axes, (what, figures) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        ends = []
        for index, (curve, values) in enumerate(zip(curves, figures, strict=True)):
            label = f"{curve.attention} (N^{log_log_slope(curve.lengths, values):.2f})"
            # After ten curves, colours repeat with another marker.
            (line,) = axes.loglog(curve.lengths, values, f"C{index % 10}", marker="os^D"[index // 10 % 4], label=label)
            ends.append((values[-1], line))
        axes.set(xlabel="tokens N", ylabel=what)
        axes.grid(alpha=0.3, which="both")
        # The legend lists the curves in the order in which they end on the right.
        handles = [line for _, line in sorted(ends, key=lambda end: end[0], reverse=True)]
        axes.legend(handles=handles, fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1))
    figure.tight_layout()
    paths = [Path(f"{path}{suffix}") for suffix in (".png", ".svg")]
    for target in paths:
        figure.savefig(target, dpi=150)
    return paths
