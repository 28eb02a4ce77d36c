"""Time and memory of every attention against the number of tokens, beside fused softmax attention in the same rounds.

One image, one attention layer with its projections: width 64, 2 heads of 32 or 1 of 64, on a square map, in fp32. What
a kind reduces tokens to stays the same as the map grows.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.atlas.crossover import BASE
from benchmarks.atlas.table import MODES, Row, steadiness
from benchmarks.memory import step_memory, unless_out_of_memory
from benchmarks.timer import spread, time_in_turn
from soft_vit.layers import ATTENTIONS, Attention, attention_class
from soft_vit.layers.choice import FIXED_TOKENS, interpolate
from soft_vit.probe.load import require_device
from soft_vit.text_tables import error_cell

TOKENS = (196, 784, 3136, 12544, 50176)
HEAD_DIMS = (32, 64)
WIDTH = 64

# What the note of a kind that was not timed begins with.
SKIPPED = "skipped"

# Shorter calls are repeated and averaged.
LEAST_SECONDS = 0.02
LEAST_ROUNDS, MOST_ROUNDS = 3, 20


@dataclass(frozen=True)
class Plan:
    """What to measure: every kind at every number of tokens, width of heads and mode.

    seconds: the aim for the rounds of one case, of which there are 3 to 20. A kind is skipped where a call is expected
    to take longer than max_seconds, or where max_megabytes do not hold it; softmax never is.
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
        """ValueError for what cannot be measured."""
        for kind in self.kinds:
            attention_class(kind)
        for tokens in self.tokens:
            if tokens < 49 or math.isqrt(tokens) ** 2 != tokens:
                raise ValueError(f"tokens={tokens} do not fill a square map of 7 x 7 or more; give such as 3136.")
        for dim in self.head_dims:
            if dim < 1 or WIDTH % dim:
                raise ValueError(f"head_dim={dim} does not divide the width {WIDTH}; give such as 32.")
        require_device(self.device)


def measure(plan: Plan, done: Sequence[Row] = ()) -> Iterator[list[Row]]:
    """Measure what rows that are done lack; yields all rows after each case, and at once if nothing is missing.

    Raises ValueError for a plan that cannot be measured.
    """
    plan.check()
    rows = list(done)
    cases = list(product(sorted(plan.tokens), plan.head_dims, plan.modes))
    yield rows
    with tqdm(cases, desc="atlas", unit="case") as bar:
        for tokens, head_dim, mode in bar:
            bar.set_postfix_str(f"{mode}, N = {tokens}, heads of {head_dim}")
            of_case = [row for row in rows if (row.tokens, row.head_dim, row.mode) == (tokens, head_dim, mode)]
            due = [row for row in of_case if row.kind in plan.kinds and _is_due(plan, row, rows)]
            rows = [row for row in rows if row not in due]
            have = {row.kind for row in of_case if row not in due}
            missing = [kind for kind in plan.kinds if kind not in have]
            if missing:
                found = _measure_case(plan, {BASE, *missing}, tokens, head_dim, mode, rows)
                # Where softmax was measured before, it stays as it was beside the kinds of those rounds.
                rows += [row for row in found if row.kind not in have]
                yield rows


def _measure_case(
    plan: Plan, kinds: Collection[str], tokens: int, head_dim: int, mode: str, known: Sequence[Row]
) -> list[Row]:
    """Rows of one number of tokens, width of heads and mode, in the order of `ATTENTIONS`."""
    side = math.isqrt(tokens)
    x = torch.randn(1, tokens, WIDTH, device=plan.device)
    steps: dict[str, Callable[[], Any]] = {}
    skipped, costs, memory = {}, {}, {}
    for kind in (kind for kind in ATTENTIONS if kind in kinds):
        build = partial(build_attention, kind, side, head_dim)
        step = partial(STEPS[mode], feat_size=(side, side))
        costs[kind] = memory[kind] = None
        try:
            costs[kind] = build(device="meta").cost
            peak = unless_out_of_memory(partial(step_memory, build, x.shape, plan.device, step))
            memory[kind] = None if peak is None else peak / 2**20
            skipped[kind] = _reason_to_skip(plan, kind, tokens, memory[kind], _curve(known, kind, head_dim, mode))
            if not skipped[kind]:
                steps[kind] = partial(step, build(device=plan.device), x)
        except Exception as error:
            # A failure of one kind is a result and does not end the others.
            skipped[kind] = error_cell(error)
    with tqdm(leave=False, desc="rounds", unit="call") as bar:

        def rounds(seconds: float) -> int:
            number = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(plan.seconds / seconds)))
            bar.reset(total=(number + 1) * len(steps))
            bar.update(len(steps))
            return number

        seconds = time_in_turn(steps, rounds, plan.device, bar, least_seconds=LEAST_SECONDS)
    rows = []
    for kind, reason in skipped.items():
        figures: list[float | None] = [None] * 6
        own = seconds.get(kind, [])
        if own:
            middle, lower, upper = spread(own)
            figures = [middle, lower, upper, *spread([s / base for s, base in zip(own, seconds[BASE], strict=True)])]
            reason = steadiness(lower, middle, upper)
        rows.append(Row(kind, costs[kind] or "", mode, head_dim, tokens, len(own), *figures, memory[kind], reason))
    return rows


def _is_due(plan: Plan, row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row was skipped for a limit that the plan has no more."""
    if row.rounds or row.megabytes is None or not row.note.startswith(SKIPPED):
        return False
    curve = _curve(rows, row.kind, row.head_dim, row.mode)
    return not _reason_to_skip(plan, row.kind, row.tokens, row.megabytes, curve)


def _curve(rows: Sequence[Row], kind: str, head_dim: int, mode: str) -> list[tuple[int, float]]:
    """Tokens and seconds of a kind, in ascending order."""
    own = (row for row in rows if (row.kind, row.head_dim, row.mode) == (kind, head_dim, mode))
    return sorted((row.tokens, row.seconds) for row in own if row.seconds is not None)


def _reason_to_skip(
    plan: Plan, kind: str, tokens: int, megabytes: float | None, curve: Sequence[tuple[int, float]]
) -> str:
    """Why a kind is not timed, or "". curve: its tokens and seconds so far, the last two of which tell its growth."""
    if kind == BASE:
        return ""
    if megabytes is None:
        return f"{SKIPPED}: out of memory"
    if megabytes > plan.max_megabytes:
        return f"{SKIPPED}: {megabytes:.4g} MB counted, more than {plan.max_megabytes:g}"
    smaller = [point for point in curve if point[0] < tokens][-2:]
    expected = interpolate(smaller, tokens) if len(smaller) == 2 else 0.0
    if expected > plan.max_seconds:
        return f"{SKIPPED}: {expected:.2g} s expected, more than {plan.max_seconds:g}"
    return ""


def build_attention(kind: str, side: int, head_dim: int, device: str | torch.device = "cpu") -> Attention:
    """A kind for a map of side x side tokens, width 64, with as many reduced tokens on every map."""
    # As the stages of the pyramids at 224 pixels: 49 windows, at most 8 tokens wide.
    ratio = max(1, min(8, side // 7))
    options = FIXED_TOKENS.get(kind, {})
    return attention_class(kind)(
        WIDTH, WIDTH // head_dim, feat_size=(side, side), sr_ratio=ratio, device=device, **options
    )


def inference_step(attention: nn.Module, x: Tensor, feat_size: tuple[int, int]) -> None:
    """One call without gradients."""
    attention.eval()
    with torch.inference_mode():
        attention(x, feat_size)


def training_step(attention: nn.Module, x: Tensor, feat_size: tuple[int, int]) -> None:
    """Forward, and gradients of the weights and of the tokens x."""
    attention.train()
    x = x.detach().requires_grad_()
    out = attention(x, feat_size)
    # A kind may ignore weights of its own, and `none` ignores the tokens.
    if out.requires_grad:
        torch.autograd.grad(out, [x, *attention.parameters()], torch.ones_like(out), allow_unused=True)


STEPS: dict[str, Callable[..., None]] = {"inference": inference_step, "training": training_step}
