"""Newton's inverse by itself: time and memory of its forms at several numbers of problems.

Letters: P problems, M bottleneck tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from tqdm import tqdm

from soft_vit.analysis.naive import ClosedFormNewton
from soft_vit.analysis.operator import PASSES, check_forms, time_forms
from soft_vit.analysis.timing import numbered
from soft_vit.ops import newton_inverse, newton_step_size, self_gaussian_kernel
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.soft.inverse import add_ridge


def newton_products(a: Tensor, iters: int = 20, ridge: float = 0.01) -> Tensor:
    """`newton_inverse` as the released code has it, two products and two passes a step; a: `[P, M, M]`."""
    a = at_least_float32(a)
    p = add_ridge(a, ridge)
    return ClosedFormNewton.apply(p, (newton_step_size(a, ridge, "rowsum") * p).detach(), iters)


INVERSES: dict[str, Callable[[Tensor], Tensor]] = {
    "newton_inverse-products": newton_products,
    "newton_inverse": newton_inverse,
    "newton_inverse-eager": partial(newton_inverse, backend="eager"),
    "newton_inverse-triton": partial(newton_inverse, backend="triton"),
}
"""Forms by name: 40 batched products, the package's own choice, its backends."""


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


def measure_inverse(
    names: Sequence[str],
    problems: Sequence[int] = (64, 256, 1024),
    *,
    num_bottleneck: int = 49,
    rounds: int = 10,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: bool = True,
) -> list[InverseTiming]:
    """Time 20 steps in fp32, one call of each form in turn, on kernels of tokens so near that each step is needed.

    dtype: of the kernels `[P, M, M]`.

    Raises ValueError for a name that there is not, a form that cannot work here, sizes below 1, or fewer than 3 rounds.
    """
    check_forms(names, INVERSES, rounds, problems=min(problems), num_bottleneck=num_bottleneck)
    forms = {label: INVERSES[name] for label, name in numbered(names).items()}
    timings = []
    total = len(problems) * len(PASSES) * len(names) * (rounds + 1)
    with tqdm(total=total, disable=not progress, desc="benchmark", leave=False) as bar:
        for count in problems:
            tokens = 0.05 * torch.randn(count, num_bottleneck, 32, device=device)
            a = self_gaussian_kernel(tokens).to(dtype)
            for direction, name, *figures in time_forms(forms, [a], rounds, device, bar):
                timings.append(InverseTiming(name, direction, count, *figures))
    return timings
