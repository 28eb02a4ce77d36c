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
from soft_vit.analysis.memory import peak_memory, unless_out_of_memory
from soft_vit.analysis.naive import naive_soft_attention
from soft_vit.analysis.timing import check_rounds, numbered, spread, time_in_turn
from soft_vit.ops import soft_attention
from soft_vit.text_tables import markdown_table

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

# Inputs and results of N tokens that are read or written.
TRAFFIC = {"forward": 4, "forward+backward": 4 + 1 + 7}


@dataclass
class OperatorTiming:
    """One form at one length: milliseconds, median over rounds and quartiles; MB at the peak beyond the inputs.

    All figures are None where the device had no memory for it.

    extra_memory: what the peak has beyond inputs and outputs, as a fraction of inputs and outputs. With backward, the
    gradient that comes in is an input and the three that go out are outputs.
    gb_per_s: `least_traffic` over the median; None for softmax attention, which is another function.
    """

    operator: str
    direction: str
    tokens: int
    median_ms: float | None
    lower_ms: float | None
    upper_ms: float | None
    memory_mb: float | None
    extra_memory: float | None
    gb_per_s: float | None = None


def least_traffic(direction: str, v: Tensor) -> int:
    """Bytes that a call in this direction moves at least where no N x M matrix is stored; v: `[B, H, N, D]`.

    Forward reads q and v for `K1^T v`, then q again for x, which it writes: 4 tensors as large as v (the operator is
    called without a residual, which would be a fifth). Backward reads q and dx for `K1^T dx`, then q, v and dx for dq
    and dv, which it writes: 7. Between them the benchmark writes dx. What has no N, as the bottleneck tokens and
    `K1^T v`, is left out. The naive form computes the same function, so the same bytes count for it; from a cache
    that holds q and v in part, any form may get more than memory's bandwidth.
    """
    return TRAFFIC[direction] * v.nbytes


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
    """Time forms of the operator by name at each number of tokens, one call of each in turn; a name may come again.

    spread_of_tokens: standard deviation of a channel before its scaling. At 1, Newton's iteration has converged after 7
    steps, and from 0.3 down it takes all 20.

    Raises ValueError for a name that there is not, a form that cannot work here, sizes below 1, or fewer than 3 rounds.
    """
    sizes = dict(batch_size=batch_size, num_heads=num_heads, num_bottleneck=num_bottleneck, head_dim=head_dim)
    check_forms(names, OPERATORS, rounds, tokens=min(tokens), **sizes)
    labels = numbered(names)
    forms = {label: OPERATORS[name] for label, name in labels.items()}
    timings, scale = [], spread_of_tokens * head_dim**-0.25
    total = len(tokens) * len(PASSES) * len(names) * (rounds + 1)
    with tqdm(total=total, disable=not progress, desc="benchmark", leave=False) as bar:
        for length in tokens:
            shapes = [(batch_size, num_heads, n, head_dim) for n in (length, num_bottleneck, length)]
            inputs = [torch.randn(shape, device=device, dtype=dtype) * scale for shape in shapes]
            for direction, name, milliseconds, *figures in time_forms(forms, inputs, rounds, device, bar):
                rate = None
                if labels[name] != "softmax" and milliseconds is not None:
                    rate = least_traffic(direction, inputs[-1]) / milliseconds / 1e6
                timings.append(OperatorTiming(name, direction, length, milliseconds, *figures, rate))
    return timings


def check_forms(names: Sequence[str], forms: Mapping[str, Callable[..., Tensor]], rounds: int, **sizes: int) -> None:
    """ValueError for a name that is not of the forms, a size below 1, or fewer than 3 rounds."""
    if unknown := set(names) - set(forms):
        raise ValueError(f"There is no operator {min(unknown)}; choose from {', '.join(forms)}.")
    for what, size in sizes.items():
        if size < 1:
            raise ValueError(f"{what} is {size}; use at least 1.")
    check_rounds(rounds)


def time_forms(
    forms: Mapping[str, Callable[..., Tensor]],
    inputs: Sequence[Tensor],
    rounds: int,
    device: str | torch.device,
    bar: tqdm | None = None,
) -> Iterator[tuple[str, str, float | None, float | None, float | None, float | None, float | None]]:
    """For each of `PASSES` and each form of a function, called in turn on the same inputs: the pass, the form's name,
    median and quartiles in milliseconds, MB at the peak beyond the inputs, and `OperatorTiming.extra_memory`; all are
    None where the device has no memory for the form."""
    for direction in PASSES:
        call = _forward if direction == "forward" else _forward_backward
        steps = {name: partial(call, form, inputs) for name, form in forms.items()}
        able = {name: step for name, step in steps.items() if unless_out_of_memory(step) is not None}
        seconds = time_in_turn(able, rounds, device, bar)
        for name in forms:
            if name not in able:
                yield direction, name, *[None] * 5
                continue
            peak = peak_memory(steps[name], device)
            # All of it is alive when the step ends, so it is in the peak.
            made = _bytes(steps[name]())
            extra = (peak - made) / (made + _bytes(inputs))
            yield direction, name, *(1e3 * value for value in spread(seconds[name])), peak / 2**20, extra


def _bytes(tensors: Sequence[Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _forward(operator: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor]:
    with torch.inference_mode():
        return (operator(*inputs),)


def _forward_backward(operator: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    out = operator(*inputs)
    grad = torch.ones_like(out)
    return out, grad, *torch.autograd.grad(out, inputs, grad, allow_unused=True)


def operator_table(timings: Sequence[Any], size: str = "tokens", bandwidth: float | None = None) -> str:
    """A Markdown table of `OperatorTiming`, or of figures by another size than the number of tokens.

    The ratio says how many times faster than the first form a form is. bandwidth, in GB/s, brings columns of
    `gb_per_s`, alone and against it, and of `extra_memory`.
    """
    columns = ["pass", "N" if size == "tokens" else size, "operator", "ms", "quartiles", "ratio", "memory (MB)"]
    if bandwidth:
        columns += ["GB/s", "% of bandwidth", "extra memory / (inputs + outputs)"]
    rows = []
    base: dict[tuple[str, int], float | None] = {}
    for t in timings:
        first = base.setdefault((t.direction, getattr(t, size)), t.median_ms)
        cells = [t.direction, getattr(t, size), t.operator]
        if t.median_ms is None:
            rows.append([*cells, "out of memory", *[""] * (len(columns) - 4)])
            continue
        ratio = "" if first is None else f"{first / t.median_ms:.2f}"
        cells += [f"{t.median_ms:.3g}", f"{t.lower_ms:.3g} - {t.upper_ms:.3g}", ratio, f"{t.memory_mb:.1f}"]
        if bandwidth:
            rate = t.gb_per_s
            cells += ["", ""] if rate is None else [f"{rate:.3g}", f"{100 * rate / bandwidth:.0f}"]
            cells.append(f"{t.extra_memory:.2f}")
        rows.append(cells)
    return markdown_table(columns, rows)


def slope_table(timings: Sequence[OperatorTiming]) -> str:
    """A Markdown table of the exponents of time and memory in N, by least squares on logarithms; "" for one length.

    A form that was measured at one length alone has none.
    """
    series: dict[tuple[str, str], list[OperatorTiming]] = {}
    for t in timings:
        if t.median_ms is not None:
            series.setdefault((t.operator, t.direction), []).append(t)
    series = {key: points for key, points in series.items() if len(points) > 1}
    if not series:
        return ""
    rows = []
    for (operator, direction), points in series.items():
        tokens = [t.tokens for t in points]
        slopes = (log_log_slope(tokens, [getattr(t, name) for t in points]) for name in ("median_ms", "memory_mb"))
        rows.append([operator, direction, *(f"{slope:.2f}" for slope in slopes)])
    return markdown_table(["operator", "pass", "time ~ N^", "memory ~ N^"], rows)
