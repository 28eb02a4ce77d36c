"""Time and memory of the attention operator alone, beside softmax attention, and of Newton's inverse alone.

Letters: B batch, H heads, N tokens, M bottleneck tokens, D channels of a head, P problems (matrices to invert).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from benchmarks.memory import peak_memory, unless_out_of_memory
from benchmarks.timer import MIN_ROUNDS, log_log_slope, numbered, require_at_least, spread, time_in_turn
from benchmarks.variants import ClosedFormNewton, naive_soft_attention
from soft_vit.ops import newton_inverse, newton_step_size, self_gaussian_kernel, soft_attention
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.soft.options import add_ridge
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
"""Forms of the operator: the released formulation, the default, each backend, torch's fused softmax attention."""


def newton_products(a: Tensor, iters: int = 20, ridge: float = 0.01) -> Tensor:
    """`newton_inverse` as in the released code, two products and two passes over memory per step; a: `[P, M, M]`."""
    a = at_least_float32(a)
    p = add_ridge(a, ridge)
    return ClosedFormNewton.apply(p, (newton_step_size(a, ridge, "rowsum") * p).detach(), iters)


INVERSES: dict[str, Callable[[Tensor], Tensor]] = {
    "newton_inverse-products": newton_products,
    "newton_inverse": newton_inverse,
    "newton_inverse-eager": partial(newton_inverse, backend="eager"),
    "newton_inverse-triton": partial(newton_inverse, backend="triton"),
}
"""Forms of the inverse: 40 batched products, the default, each backend."""

PASSES = ("forward", "forward+backward")

# Tensors of N tokens that are read or written.
TRAFFIC = {"forward": 4, "forward+backward": 4 + 1 + 7}

# More than any cache holds.
COPIED_BYTES = 512 << 20


@dataclass
class OperatorTiming:
    """One form at one length: milliseconds (median and quartiles over rounds), and peak MB beyond the inputs.

    All are None if memory ran out. extra_memory: the peak beyond inputs and outputs, gradients included, as a fraction
    of both. gb_per_s: `least_traffic` divided by the median; None for softmax attention, which is another function.
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


@dataclass
class InverseTiming:
    """One form at one number of problems; see `OperatorTiming`."""

    operator: str
    direction: str
    problems: int
    median_ms: float | None
    lower_ms: float | None
    upper_ms: float | None
    memory_mb: float | None
    extra_memory: float | None


def least_traffic(direction: str, v: Tensor) -> int:
    """The least bytes that a call moves if no N x M matrix is stored; v: `[B, H, N, D]`.

    Forward reads q and v for `K1^T v`, then q again for x, which it writes: 4 tensors of v's size. Between the passes
    the benchmark writes dx. Backward reads q and dx for `K1^T dx`, then q, v and dx for dq and dv, which it writes: 7.
    Tensors without N are left out. A form may exceed the memory's bandwidth if a cache holds part of q and v.
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
) -> list[OperatorTiming]:
    """Time forms of the operator by name at each number of tokens, one call of each in turn; names may repeat.

    spread_of_tokens: standard deviation of a channel before its scaling. At 1, Newton's iteration converges after 7
    steps; at 0.3 or less, it takes all 20.

    Raises ValueError for an unknown name, a form that cannot run here, sizes below 1, or fewer than 3 rounds.
    """
    sizes = dict(batch_size=batch_size, num_heads=num_heads, num_bottleneck=num_bottleneck, head_dim=head_dim)
    forms = _labelled_forms(names, OPERATORS, rounds, tokens=min(tokens), **sizes)
    timings, scale = [], spread_of_tokens * head_dim**-0.25
    total = len(tokens) * len(PASSES) * len(names) * (rounds + 1)
    with tqdm(total=total, desc="benchmark", leave=False) as bar:
        for length in tokens:
            shapes = [(batch_size, num_heads, n, head_dim) for n in (length, num_bottleneck, length)]
            inputs = [torch.randn(shape, device=device, dtype=dtype) * scale for shape in shapes]
            for direction, name, milliseconds, *figures in time_forms(forms, inputs, rounds, device, bar):
                rate = None
                if forms[name] is not OPERATORS["softmax"] and milliseconds is not None:
                    rate = least_traffic(direction, inputs[-1]) / milliseconds / 1e6
                timings.append(OperatorTiming(name, direction, length, milliseconds, *figures, rate))
    return timings


def measure_inverse(
    names: Sequence[str],
    problems: Sequence[int] = (64, 256, 1024),
    *,
    num_bottleneck: int = 49,
    rounds: int = 10,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[InverseTiming]:
    """Time forms of Newton's inverse by name, one call of each in turn: 20 steps in fp32.

    The tokens are so close to each other that the kernels `[P, M, M]`, of the given dtype, need every step.

    Raises ValueError for an unknown name, a form that cannot run here, sizes below 1, or fewer than 3 rounds.
    """
    forms = _labelled_forms(names, INVERSES, rounds, problems=min(problems), num_bottleneck=num_bottleneck)
    timings = []
    total = len(problems) * len(PASSES) * len(names) * (rounds + 1)
    with tqdm(total=total, desc="benchmark", leave=False) as bar:
        for count in problems:
            tokens = 0.05 * torch.randn(count, num_bottleneck, 32, device=device)
            a = self_gaussian_kernel(tokens).to(dtype)
            for direction, name, *figures in time_forms(forms, [a], rounds, device, bar):
                timings.append(InverseTiming(name, direction, count, *figures))
    return timings


def _labelled_forms(
    names: Sequence[str], forms: Mapping[str, Callable[..., Tensor]], rounds: int, **sizes: int
) -> dict[str, Callable[..., Tensor]]:
    """Forms by label, see `numbered`. ValueError for an unknown name, a size below 1, or fewer than 3 rounds."""
    if unknown := set(names) - set(forms):
        raise ValueError(f"There is no operator {min(unknown)}; choose from {', '.join(forms)}.")
    for what, size in sizes.items():
        if size < 1:
            raise ValueError(f"{what} is {size}; use at least 1.")
    require_at_least(MIN_ROUNDS, rounds=rounds)
    return {label: forms[name] for label, name in numbered(names).items()}


def time_forms(
    forms: Mapping[str, Callable[..., Tensor]],
    inputs: Sequence[Tensor],
    rounds: int,
    device: str | torch.device,
    bar: tqdm | None = None,
) -> Iterator[tuple[str, str, float | None, float | None, float | None, float | None, float | None]]:
    """Time forms of one function on the same inputs, called in turn.

    Yields for each of `PASSES` and each form: the pass, the form's name, median and quartiles in milliseconds, peak MB
    beyond the inputs, and `OperatorTiming.extra_memory`; the figures are None if the device has too little memory.
    """
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
            # All results are alive when the step ends, so the peak includes them.
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
    """A Markdown table of `OperatorTiming`, or with size="problems" of `InverseTiming`.

    The ratio tells how many times faster a form is than the first one. With bandwidth, in GB/s, there are columns for
    `gb_per_s`, absolute and relative to the bandwidth, and for `extra_memory`.
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
    """A Markdown table of the exponents of time and memory in N, for forms measured at several lengths; else ""."""
    series: dict[tuple[str, str], list[OperatorTiming]] = {}
    for t in timings:
        if t.median_ms is not None:
            series.setdefault((t.operator, t.direction), []).append(t)
    rows = []
    for key, points in series.items():
        if len(points) > 1:
            tokens = [t.tokens for t in points]
            time = log_log_slope(tokens, [t.median_ms for t in points])
            memory = log_log_slope(tokens, [t.memory_mb for t in points])
            rows.append([*key, f"{time:.2f}", f"{memory:.2f}"])
    return markdown_table(["operator", "pass", "time ~ N^", "memory ~ N^"], rows) if rows else ""


def copy_bandwidth(device: str | torch.device, rounds: int = 10) -> float:
    """GB/s, reading plus writing, of a copy of 512 MiB within the device's memory: the median over rounds."""
    # Pages that were never written would be read without touching memory.
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    seconds = time_in_turn({"copy": partial(target.copy_, source)}, rounds, device)["copy"]
    return 2 * source.nbytes / median(seconds) / 1e9
