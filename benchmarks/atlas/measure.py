"""Measure time and memory of every attention against the number of tokens, in turn with fused softmax attention.

One image, one attention layer with its projections: width 64, 2 heads of 32 or 1 of 64, on a square map, in fp32. The
number of reduced tokens stays the same as the map grows. A stopped run continues from its table. The folder gets a
table as CSV, and pictures.
"""

import argparse
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.atlas.crossover import BASE, QUANTITIES
from benchmarks.atlas.pictures import plot_crossovers, plot_groups
from benchmarks.atlas.table import AttentionRow, open_table, steadiness, write_table
from benchmarks.memory import step_memory, unless_out_of_memory
from benchmarks.timer import MODES, spread, time_in_turn
from soft_vit.layers import ATTENTIONS, Attention, attention_class
from soft_vit.layers.choice import FIXED_TOKENS, interpolate
from soft_vit.text_tables import error_cell

TOKENS = (196, 784, 3136, 12544, 50176)
HEAD_DIMS = (32, 64)
WIDTH = 64

# Shorter calls are repeated and averaged.
MIN_SECONDS = 0.02
MIN_ROUNDS, MAX_ROUNDS = 3, 20
# An attention is skipped where a call is expected to take longer, or to need more memory; softmax never is.
MAX_SECONDS = 6.0
MAX_MEGABYTES = 8000.0


def measure(
    done: Sequence[AttentionRow], kinds: Sequence[str], tokens: Sequence[int], seconds: float, device: str
) -> Iterator[list[AttentionRow]]:
    """Measure attentions at every number of tokens, width of heads and mode, except the rows that are done.

    Yields all rows at once and after each case. seconds: the aim for the rounds of one case, of which there are 3 to
    20.
    """
    rows = list(done)
    yield rows
    with tqdm(list(product(sorted(tokens), HEAD_DIMS, MODES)), desc="atlas", unit="case") as bar:
        for case in bar:
            bar.set_postfix_str("N = {}, heads of {}, {}".format(*case))
            have = {row.kind for row in rows if (row.tokens, row.head_dim, row.mode) == case}
            if missing := set(kinds) - have:
                found = _measure_case({BASE, *missing}, case, rows, seconds, device)
                # Earlier rows of softmax stay: they belong to the rounds of the other attentions.
                rows += [row for row in found if row.kind not in have]
                yield rows


def _measure_case(
    kinds: Collection[str], case: tuple[int, int, str], known: Sequence[AttentionRow], aim: float, device: str
) -> list[AttentionRow]:
    """Return rows of one case: tokens, width of heads and mode; in the order of `ATTENTIONS`."""
    (tokens, head_dim, mode), side = case, math.isqrt(case[0])
    x = torch.randn(1, tokens, WIDTH, device=device)
    steps: dict[str, Callable[[], Any]] = {}
    notes, costs, memory = {}, {}, {}
    for kind in (kind for kind in ATTENTIONS if kind in kinds):
        build = partial(build_attention, kind, side, head_dim)
        step = partial(STEPS[mode], feat_size=(side, side))
        costs[kind], memory[kind] = "", None
        try:
            costs[kind] = build(device="meta").traits.cost
            peak = unless_out_of_memory(partial(step_memory, build, x.shape, device, step))
            memory[kind] = None if peak is None else peak / 2**20
            notes[kind] = _reason_to_skip(kind, tokens, memory[kind], _curve(known, kind, head_dim, mode))
            if not notes[kind]:
                steps[kind] = partial(step, build(device=device), x)
        except Exception as error:
            # A failure of one attention is a result and does not end the others.
            notes[kind] = error_cell(error)

    def rounds(seconds: float) -> int:
        return max(MIN_ROUNDS, min(MAX_ROUNDS, int(aim / seconds)))

    seconds = time_in_turn(steps, rounds, device, desc="rounds", min_seconds=MIN_SECONDS)
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


def _reason_to_skip(kind: str, tokens: int, megabytes: float | None, curve: Sequence[tuple[int, float]]) -> str:
    """Return why an attention is not timed, or "". curve: its tokens and seconds; the last two show its growth."""
    if kind == BASE:
        return ""
    if megabytes is None:
        return "skipped: out of memory"
    if megabytes > MAX_MEGABYTES:
        return f"skipped: {megabytes:.4g} MB counted, more than {MAX_MEGABYTES:g}"
    smaller = [point for point in curve if point[0] < tokens][-2:]
    expected = interpolate(smaller, tokens) if len(smaller) == 2 else 0.0
    if expected > MAX_SECONDS:
        return f"skipped: {expected:.2g} s expected, more than {MAX_SECONDS:g}"
    return ""


def build_attention(kind: str, side: int, head_dim: int, device: str = "cpu", **options: Any) -> Attention:
    """Build a kind for a map of side x side tokens, width 64, with the same number of reduced tokens on every map."""
    # As the stages of the pyramids at 224 pixels: 49 windows, at most 8 tokens wide.
    options = {"sr_ratio": max(1, min(8, side // 7)), "device": device, **FIXED_TOKENS.get(kind, {}), **options}
    return attention_class(kind)(WIDTH, WIDTH // head_dim, feat_size=(side, side), **options)


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
    # Some attentions do not use all of their weights, and `none` does not use the tokens.
    if out.requires_grad:
        torch.autograd.grad(out, [x, *attention.parameters()], torch.ones_like(out), allow_unused=True)


STEPS: dict[str, Callable[..., None]] = {"inference": inference_step, "training": training_step}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(out=Path("atlas"))
    parser.add_argument("--kinds", nargs="+", default=tuple(ATTENTIONS), metavar="KIND", help="(default: all)")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, metavar="N", help="(default: 196 to 50176)")
    parser.add_argument("--seconds", type=float, default=20, help="aim for the rounds of one case (default: 20)")


def run(args: argparse.Namespace) -> None:
    """Measure, write after each case, and draw at the end."""
    for kind in args.kinds:
        attention_class(kind)
    for tokens in args.tokens:
        if tokens < 49 or math.isqrt(tokens) ** 2 != tokens:
            raise ValueError(f"tokens must fill a square map of 7 x 7 or more, got {tokens}.")
    path = args.out / "atlas.csv"
    table = open_table(path, args.device, args.command)
    for rows in measure(table.rows, args.kinds, args.tokens, args.seconds, args.device):
        table = replace(table, rows=rows)
        if rows:
            write_table(path, table)
    for head_dim in sorted({row.head_dim for row in table.rows}):
        for quantity in QUANTITIES:
            plot_groups(table.rows, quantity, head_dim, args.out / f"{quantity}_{head_dim}.png")
        plot_crossovers(table.rows, head_dim, args.out / f"crossovers_{head_dim}.png")
    print(f"Written: atlas.csv and pictures in {args.out}.")
