"""The attention operator by itself: time and memory of its forms, and of softmax attention, at several lengths.

Letters: B batch, H heads, N tokens, M bottleneck tokens, D channels of a head.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from soft_vit.analysis.lengths import log_log_slope
from soft_vit.analysis.memory import peak_memory
from soft_vit.analysis.naive import naive_soft_attention
from soft_vit.analysis.timing import check_rounds, spread, time_in_turn
from soft_vit.ops import soft_attention

OPERATORS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "naive": naive_soft_attention,
    "newton": partial(soft_attention, inverse="newton"),
    "cholesky": partial(soft_attention, inverse="cholesky"),
    "newton-eager": partial(soft_attention, inverse="newton", backend="eager"),
    "newton-triton": partial(soft_attention, inverse="newton", backend="triton"),
    "cholesky-eager": partial(soft_attention, inverse="cholesky", backend="eager"),
    "cholesky-triton": partial(soft_attention, inverse="cholesky", backend="triton"),
    "softmax": lambda q, bottleneck, v: F.scaled_dot_product_attention(q, q, v),
}
"""Forms by name: the released formulation, the package's own choice, its backends, torch's fused softmax attention."""

PASSES = ("forward", "forward+backward")


@dataclass
class OperatorTiming:
    """One form at one length: milliseconds, median over rounds and quartiles; MB at the peak beyond the inputs."""

    operator: str
    direction: str
    tokens: int
    median_ms: float
    lower_ms: float
    upper_ms: float
    memory_mb: float


def measure_operator(
    names: Sequence[str],
    tokens: Sequence[int] = (784, 3136, 12544, 50176),
    *,
    batch_size: int = 1,
    num_heads: int = 2,
    num_bottleneck: int = 49,
    head_dim: int = 32,
    spread_of_tokens: float = 1.0,
    rounds: int = 10,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: bool = True,
) -> list[OperatorTiming]:
    """Time forms of the operator by name at each number of tokens, one call of each in turn.

    spread_of_tokens: standard deviation of a channel before its scaling. At 1, Newton's iteration has converged after 7
    steps, and from 0.3 down it takes all 20.

    Raises ValueError for a name that there is not, a form that cannot work here, or fewer than 3 rounds.
    """
    check_forms(names, OPERATORS, rounds)
    forms = {name: OPERATORS[name] for name in names}
    timings, scale = [], spread_of_tokens * head_dim**-0.25
    total = len(tokens) * len(PASSES) * len(names) * (rounds + 1)
    with tqdm(total=total, disable=not progress, desc="benchmark", leave=False) as bar:
        for length in tokens:
            shapes = [(batch_size, num_heads, n, head_dim) for n in (length, num_bottleneck, length)]
            inputs = [torch.randn(shape, device=device, dtype=dtype) * scale for shape in shapes]
            for direction, name, *figures in time_forms(forms, inputs, rounds, device, bar):
                timings.append(OperatorTiming(name, direction, length, *figures))
    return timings


def check_forms(names: Sequence[str], forms: Mapping[str, Callable[..., Tensor]], rounds: int) -> None:
    """ValueError for a name that is not of the forms, or fewer than 3 rounds."""
    if unknown := set(names) - set(forms):
        raise ValueError(f"There is no operator {min(unknown)}; choose from {', '.join(forms)}.")
    check_rounds(rounds)


def time_forms(
    forms: Mapping[str, Callable[..., Tensor]],
    inputs: Sequence[Tensor],
    rounds: int,
    device: str | torch.device,
    bar: tqdm,
) -> Iterator[tuple[str, str, float, float, float, float]]:
    """For each of `PASSES` and each form of a function, called in turn on the same inputs: the pass, the form's name,
    median and quartiles in milliseconds, and MB at the peak beyond the inputs."""
    for direction in PASSES:
        call = _forward if direction == "forward" else _forward_backward
        steps = {name: partial(call, form, inputs) for name, form in forms.items()}
        for name, seconds in time_in_turn(steps, rounds, device, bar).items():
            yield direction, name, *(1e3 * value for value in spread(seconds)), peak_memory(steps[name], device) / 2**20


def _forward(operator: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    with torch.inference_mode():
        operator(*inputs)


def _forward_backward(operator: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    out = operator(*inputs)
    torch.autograd.grad(out, inputs, torch.ones_like(out), allow_unused=True)


def operator_table(timings: Sequence[Any], size: str = "tokens") -> str:
    """A Markdown table of `OperatorTiming`, or of figures by another size than the number of tokens.

    The ratio says how many times faster than the first form a form is.
    """
    heading = "N" if size == "tokens" else size
    lines = [f"| pass | {heading} | operator | ms | quartiles | ratio | memory (MB) |", "|---|---|---|---|---|---|---|"]
    base: dict[tuple[str, int], float] = {}
    for t in timings:
        ratio = base.setdefault((t.direction, getattr(t, size)), t.median_ms) / t.median_ms
        quartiles = f"{t.lower_ms:.3g} - {t.upper_ms:.3g}"
        cells = (
            t.direction,
            getattr(t, size),
            t.operator,
            f"{t.median_ms:.3g}",
            quartiles,
            f"{ratio:.2f}",
            f"{t.memory_mb:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def slope_table(timings: Sequence[OperatorTiming]) -> str:
    """A Markdown table of the exponents of time and memory in N, by least squares on logarithms; "" for one length."""
    series: dict[tuple[str, str], list[OperatorTiming]] = {}
    for t in timings:
        series.setdefault((t.operator, t.direction), []).append(t)
    if any(len(points) < 2 for points in series.values()):
        return ""
    lines = ["| operator | pass | time ~ N^ | memory ~ N^ |", "|---|---|---|---|"]
    for (operator, direction), points in series.items():
        tokens = [t.tokens for t in points]
        slopes = (log_log_slope(tokens, [getattr(t, name) for t in points]) for name in ("median_ms", "memory_mb"))
        lines.append(f"| {operator} | {direction} | " + " | ".join(f"{slope:.2f}" for slope in slopes) + " |")
    return "\n".join(lines)
