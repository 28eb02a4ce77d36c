"""Measure time and memory of every attention against the number of tokens, in turn with fused softmax attention.

One image, one attention layer with its projections: width 64, 2 heads of 32 or 1 of 64, on a square map, in fp32. What
an attention reduces tokens to stays the same as the map grows. A run that was stopped continues where it was. The
folder gets a table as CSV and as Markdown, and pictures.
"""

import argparse
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.atlas.crossover import BASE, QUANTITIES
from benchmarks.atlas.pictures import plot_crossovers, plot_groups
from benchmarks.atlas.report import report
from benchmarks.atlas.table import AttentionRow, open_table, steadiness, write_table
from benchmarks.memory import step_memory, unless_out_of_memory
from benchmarks.timer import MODES, spread, time_in_turn
from soft_vit.layers import ATTENTIONS, Attention, attention_class
from soft_vit.layers.choice import FIXED_TOKENS, interpolate
from soft_vit.text_tables import error_cell
from soft_vit.weights.files import write_atomically

TOKENS = (196, 784, 3136, 12544, 50176)
HEAD_DIMS = (32, 64)
WIDTH = 64

# Shorter calls are repeated and averaged.
MIN_SECONDS = 0.02
MIN_ROUNDS, MAX_ROUNDS = 3, 20


@dataclass(frozen=True)
class Plan:
    """What to measure: every attention at every number of tokens, width of heads and mode.

    seconds: the aim for the rounds of one case, of which there are 3 to 20. An attention is skipped where a call is
    expected to take longer than max_seconds, or more than max_megabytes; softmax never is.
    """

    kinds: Sequence[str] = tuple(ATTENTIONS)
    tokens: Sequence[int] = TOKENS
    head_dims: Sequence[int] = HEAD_DIMS
    modes: Sequence[str] = MODES
    seconds: float = 20.0
    max_seconds: float = 6.0
    max_megabytes: float = 8000.0
    device: str = "cpu"

    def check(self) -> None:
        """Raise ValueError for what cannot be measured."""
        for kind in self.kinds:
            attention_class(kind)
        for tokens in self.tokens:
            if tokens < 49 or math.isqrt(tokens) ** 2 != tokens:
                raise ValueError(f"tokens must fill a square map of 7 x 7 or more, got {tokens}.")
        for dim in self.head_dims:
            if dim < 1 or WIDTH % dim:
                raise ValueError(f"head_dim must divide the width {WIDTH}, got {dim}.")


def measure(plan: Plan, done: Sequence[AttentionRow] = ()) -> Iterator[list[AttentionRow]]:
    """Measure what rows that are done lack; yields all rows after each case, and at once what is done."""
    rows = list(done)
    cases = list(product(sorted(plan.tokens), plan.head_dims, plan.modes))
    yield rows
    with tqdm(cases, desc="atlas", unit="case") as bar:
        for tokens, head_dim, mode in bar:
            bar.set_postfix_str(f"{mode}, N = {tokens}, heads of {head_dim}")
            have = {row.kind for row in rows if (row.tokens, row.head_dim, row.mode) == (tokens, head_dim, mode)}
            missing = [kind for kind in plan.kinds if kind not in have]
            if missing:
                found = _measure_case(plan, {BASE, *missing}, tokens, head_dim, mode, rows)
                # Rows of softmax from before stay with the attentions of those rounds.
                rows += [row for row in found if row.kind not in have]
                yield rows


def _measure_case(
    plan: Plan, kinds: Collection[str], tokens: int, head_dim: int, mode: str, known: Sequence[AttentionRow]
) -> list[AttentionRow]:
    """Return rows of one number of tokens, width of heads and mode, in the order of `ATTENTIONS`."""
    side = math.isqrt(tokens)
    x = torch.randn(1, tokens, WIDTH, device=plan.device)
    steps: dict[str, Callable[[], Any]] = {}
    notes, costs, memory = {}, {}, {}
    for kind in (kind for kind in ATTENTIONS if kind in kinds):
        build = partial(build_attention, kind, side, head_dim)
        step = partial(STEPS[mode], feat_size=(side, side))
        costs[kind], memory[kind] = "", None
        try:
            costs[kind] = build(device="meta").cost
            peak = unless_out_of_memory(partial(step_memory, build, x.shape, plan.device, step))
            memory[kind] = None if peak is None else peak / 2**20
            notes[kind] = _reason_to_skip(plan, kind, tokens, memory[kind], _curve(known, kind, head_dim, mode))
            if not notes[kind]:
                steps[kind] = partial(step, build(device=plan.device), x)
        except Exception as error:
            # A failure of one attention is a result and does not end the others.
            notes[kind] = error_cell(error)

    def rounds(seconds: float) -> int:
        return max(MIN_ROUNDS, min(MAX_ROUNDS, int(plan.seconds / seconds)))

    seconds = time_in_turn(steps, rounds, plan.device, desc="rounds", min_seconds=MIN_SECONDS)
    rows = []
    for kind, note in notes.items():
        own = seconds.get(kind, [])
        figures: list[float | None] = [None] * 6
        if own:
            time = spread(own)
            figures = [*time, *spread([s / base for s, base in zip(own, seconds[BASE], strict=True)])]
            note = steadiness(time)
        rows.append(AttentionRow(kind, costs[kind], mode, head_dim, tokens, len(own), *figures, memory[kind], note))
    return rows


def _curve(rows: Sequence[AttentionRow], kind: str, head_dim: int, mode: str) -> list[tuple[int, float]]:
    """Return tokens and seconds of a kind, in ascending order."""
    own = (row for row in rows if (row.kind, row.head_dim, row.mode) == (kind, head_dim, mode))
    return sorted((row.tokens, row.seconds) for row in own if row.seconds is not None)


def _reason_to_skip(
    plan: Plan, kind: str, tokens: int, megabytes: float | None, curve: Sequence[tuple[int, float]]
) -> str:
    """Return why a kind is not timed, or "". curve: its tokens and seconds so far; the last two show its growth."""
    if kind == BASE:
        return ""
    if megabytes is None:
        return "skipped: out of memory"
    if megabytes > plan.max_megabytes:
        return f"skipped: {megabytes:.4g} MB counted, more than {plan.max_megabytes:g}"
    smaller = [point for point in curve if point[0] < tokens][-2:]
    expected = interpolate(smaller, tokens) if len(smaller) == 2 else 0.0
    if expected > plan.max_seconds:
        return f"skipped: {expected:.2g} s expected, more than {plan.max_seconds:g}"
    return ""


def build_attention(kind: str, side: int, head_dim: int, device: str | torch.device = "cpu") -> Attention:
    """Build a kind for a map of side x side tokens, width 64, with as many reduced tokens on every map."""
    # As the stages of the pyramids at 224 pixels: 49 windows, at most 8 tokens wide.
    ratio = max(1, min(8, side // 7))
    options = FIXED_TOKENS.get(kind, {})
    return attention_class(kind)(
        WIDTH, WIDTH // head_dim, feat_size=(side, side), sr_ratio=ratio, device=device, **options
    )


def inference_step(attention: nn.Module, x: Tensor, feat_size: tuple[int, int]) -> None:
    """Call an attention once without gradients."""
    attention.eval()
    with torch.inference_mode():
        attention(x, feat_size)


def training_step(attention: nn.Module, x: Tensor, feat_size: tuple[int, int]) -> None:
    """Compute the result, and gradients of the weights and of the tokens x."""
    attention.train()
    x = x.detach().requires_grad_()
    out = attention(x, feat_size)
    # A kind may ignore weights of its own, and `none` ignores the tokens.
    if out.requires_grad:
        torch.autograd.grad(out, [x, *attention.parameters()], torch.ones_like(out), allow_unused=True)


STEPS: dict[str, Callable[..., None]] = {"inference": inference_step, "training": training_step}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(out=Path("atlas"))
    parser.add_argument("--kinds", nargs="+", default=Plan.kinds, metavar="KIND", help="attentions (default: all)")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, metavar="N", help="(default: 196 to 50176)")
    parser.add_argument("--head-dims", type=int, nargs="+", default=HEAD_DIMS, metavar="D", help="(default: 32 64)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="(default: both)")
    limits = {
        "seconds": "aim for the rounds of one case",
        "max-seconds": "skip longer calls",
        "max-megabytes": "skip larger calls",
    }
    for name, what in limits.items():
        default = getattr(Plan, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{what} (default: %(default)g)")


def run(args: argparse.Namespace) -> None:
    """Measure, write after each case, and draw at the end."""
    limits = (args.seconds, args.max_seconds, args.max_megabytes)
    plan = Plan(args.kinds, args.tokens, args.head_dims, args.modes, *limits, args.device)
    plan.check()
    path = args.out / "atlas.csv"
    table = open_table(path, args.device, args.command)
    for rows in measure(plan, table.rows):
        table = replace(table, rows=rows)
        if rows:
            write_table(path, table)
    write_atomically(args.out / "figures.md", report(table).encode())
    for head_dim in sorted({row.head_dim for row in table.rows}):
        for quantity in QUANTITIES:
            plot_groups(table.rows, quantity, head_dim, args.out / f"{quantity}_{head_dim}.png")
        plot_crossovers(table.rows, head_dim, args.out / f"crossovers_{head_dim}.png")
    print(f"Written: atlas.csv, figures.md and pictures in {args.out}.")
