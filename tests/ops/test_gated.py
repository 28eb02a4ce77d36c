"""Gated linear attention in chunks, against its recurrence token by token in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops import gated
from soft_vit.ops.gated import gated_linear_attention


def recurrence(q: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
    results = []
    for gate, order in zip(gates, (range(q.shape[2]), range(q.shape[2] - 1, -1, -1)), strict=True):
        state, rows = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None]), {}
        for t in order:
            state = gate[:, :, t, :, None].exp() * state + k[:, :, t, :, None] * v[:, :, t, None]
            rows[t] = (q[:, :, t, None] @ state).squeeze(2) / q.shape[3] ** 0.5
        results.append(torch.stack([rows[t] for t in sorted(rows)], dim=2))
    return results[0] + results[1]


def inputs(N: int, strength: str = "trained", dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values and gates; the recurrence takes the numbers that they have in their dtype."""
    g = torch.Generator().manual_seed(N)
    tensors = [torch.randn(2, 3, N, width, generator=g) for width in (4, 4, 6)]
    for _ in range(2):
        logits = 4 * torch.randn(2, 3, N, 4, generator=g)
        if strength == "half at -2000":
            logits = torch.where(torch.rand(logits.shape, generator=g) < 0.5, -2000.0, logits)
        elif strength == "runs":
            # Weak gates behind strong ones, whose sums must not round them away.
            logits = torch.where((torch.arange(N) // 21 % 2 == 0)[:, None], -500.0, 3.0).expand(logits.shape)
        elif strength == "closed":
            logits = torch.full_like(logits, -1e9)
        tensors.append(F.logsigmoid(logits) / 16)
    return [x.to(dtype).requires_grad_() for x in tensors]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


# Chunks of 16 in groups: one token, a chunk and its neighbours, one group, and two levels of groups.
@pytest.mark.parametrize("N", [1, 16, 17, 270])
def test_equals_the_recurrence_with_all_gradients(N: int) -> None:
    tensors = inputs(N)
    results = []
    for function in (gated_linear_attention, recurrence):
        y = function(*tensors)
        results.append([y, *torch.autograd.grad(y.square().sum(), tensors)])
    for found, expected in zip(*results, strict=True):
        # Gates of a single token decay nothing.
        assert (found - expected).norm() <= 1e-11 * expected.norm().clamp(min=1)


def test_many_chunks_and_few_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three levels of groups."""
    monkeypatch.setattr(gated, "GROUP", 3)
    tensors = inputs(170)
    assert relative(gated_linear_attention(*tensors), recurrence(*tensors)) <= 1e-12


@pytest.mark.parametrize("strength", ["trained", "half at -2000", "runs", "closed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strong_gates_neither_overflow_nor_round_weak_ones_away(strength: str, dtype: torch.dtype) -> None:
    """Inside in fp32, also for bf16, and in gradients."""
    tensors = inputs(90, strength, dtype)
    y = gated_linear_attention(*tensors)
    assert y.dtype == torch.float32
    with torch.no_grad():
        assert relative(y, recurrence(*(x.double() for x in tensors))) <= 5e-6
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(y.square().sum(), tensors))


def test_gradients_twice() -> None:
    tensors = [x[:1, :1, :, :2].detach().requires_grad_() for x in inputs(18)]
    assert torch.autograd.gradgradcheck(gated_linear_attention, tensors, fast_mode=True)
