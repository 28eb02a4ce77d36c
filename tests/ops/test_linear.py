"""Linear attention with and without gates, against the dense forms."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention_cases import decode, relative_error
from torch import Tensor, nn

from soft_vit.ops import chunked, gated
from soft_vit.ops.gated import gated_linear_attention
from soft_vit.ops.linear import causal_linear_attention, elu_features, linear_attention
from soft_vit.ops.mlstm import mlstm
from soft_vit.ops.rwkv import CHUNKS, biwkv
from soft_vit.ops.rwkv6 import rwkv6
from soft_vit.ops.ssm import selective_scan

# No chunk, less than one, exactly one, several, and several with a remainder.
LENGTHS = [1, 63, 64, 256, 300]


def inputs(num_tokens: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Features of 12 channels and values of 5, so that a mixed-up width fails."""
    generator = torch.Generator().manual_seed(num_tokens)
    q, k = torch.randn(2, 2, 3, num_tokens, 12, generator=generator, dtype=torch.float64)
    v = torch.randn(2, 3, num_tokens, 5, generator=generator, dtype=torch.float64)
    return elu_features(q).to(dtype), elu_features(k).to(dtype), v.to(dtype)


def dense(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    weight = q @ k.mT
    if causal:
        weight = weight.tril()
    return weight / weight.sum(-1, keepdim=True) @ v


def test_features_are_elu_plus_one_and_positive_where_that_rounds_to_zero() -> None:
    x = torch.tensor([-5.0, -1.0, 0.0, 2.0])
    torch.testing.assert_close(elu_features(x), F.elu(x) + 1, rtol=1e-5, atol=0)
    assert (elu_features(torch.tensor([-30.0, -80.0])) > 0).all()
    x = torch.tensor([-200.0, 200.0], requires_grad=True)
    elu_features(x).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("least", [1, 1 << 40])
def test_a_learned_feature_map_has_a_gradient_in_parts_and_at_once(least: int, monkeypatch) -> None:
    monkeypatch.setattr(chunked, "MIN_TOKENS", least)
    q, k, v = inputs(63, torch.float64)
    learned = nn.Linear(12, 7, dtype=torch.float64)
    x = linear_attention(q, k, v, phi=lambda x, w, b: F.linear(x, w, b).exp(), weights=tuple(learned.parameters()))
    (given,) = torch.autograd.grad(x.sum(), learned.bias)
    expected = dense(learned(q).exp(), learned(k).exp(), v, causal=False)
    (wanted,) = torch.autograd.grad(expected.sum(), learned.bias)
    torch.testing.assert_close(given, wanted, rtol=1e-10, atol=1e-12)


LINEAR_FORMS = [linear_attention, decode, *(partial(causal_linear_attention, chunk_size=size) for size in (1, 16, 64))]


@pytest.mark.parametrize("num_tokens", LENGTHS)
@pytest.mark.parametrize("form", LINEAR_FORMS, ids=["all", "decode", "1", "16", "64"])
def test_values_and_gradients_are_those_of_the_dense_form(num_tokens: int, form) -> None:
    """Weights have one sign: independent roundings of 300 terms in fp32 add up to sqrt(300) * 2^-24 = 1e-6."""
    found = []
    for attend in (form, partial(dense, causal=form is not linear_attention)):
        tensors = [x.requires_grad_() for x in inputs(num_tokens, torch.float64)]
        x = attend(*tensors)
        found.append([x, *torch.autograd.grad(x.sin().sum(), tensors)])
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(form(*inputs(num_tokens)).double(), found[1][0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", [causal_linear_attention, decode])
def test_causal_forms_do_not_see_the_future(form) -> None:
    q, k, v = inputs(150)
    # In the middle of a chunk, and with a perturbation that would swamp anything it reached.
    seen = 100
    before = form(q, k, v)[:, :, :seen]
    q, k, v = (torch.cat([x[:, :, :seen], 1e4 * x[:, :, seen:].flip(2)], 2) for x in (q, k, v))
    assert torch.equal(form(q, k, v)[:, :, :seen], before)


def test_half_precision_is_computed_in_fp32() -> None:
    q, k, v = inputs(256)
    expected = dense(q.bfloat16().double(), k.bfloat16().double(), v.bfloat16().double(), causal=False)
    actual = linear_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert actual.dtype == torch.bfloat16
    # Only the result is rounded: half an ulp of bf16, 2^-9, and fp32 noise on entries that cancel.
    torch.testing.assert_close(actual.double(), expected, rtol=2**-8, atol=1e-5)


# Gated linear attention in chunks, against its recurrence token by token in float64.


def recurrence(q: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
    results = []
    for gate, order in zip(gates, (range(q.shape[2]), range(q.shape[2] - 1, -1, -1)), strict=True):
        state, rows = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None]), {}
        for t in order:
            state = gate[:, :, t, :, None].exp() * state + k[:, :, t, :, None] * v[:, :, t, None]
            rows[t] = (q[:, :, t, None] @ state).squeeze(2) / q.shape[3] ** 0.5
        results.append(torch.stack([rows[t] for t in sorted(rows)], dim=2))
    return results[0] + results[1]


def inputs_gated(N: int, strength: str = "trained", dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values and gates; the recurrence takes the numbers that they have in their dtype."""
    g = torch.Generator().manual_seed(N)
    tensors = [torch.randn(2, 3, N, width, generator=g) for width in (4, 4, 6)]
    for _ in range(2):
        logits = 4 * torch.randn(2, 3, N, 4, generator=g)
        if strength == "strong":
            logits = 8 * logits
        elif strength == "half at -2000":
            logits = torch.where(torch.rand(logits.shape, generator=g) < 0.5, -2000.0, logits)
        elif strength == "runs":
            # Weak gates behind strong ones, whose sums must not round them away.
            logits = torch.where((torch.arange(N) // 21 % 2 == 0)[:, None], -500.0, 3.0).expand(logits.shape)
        elif strength == "closed":
            logits = torch.full_like(logits, -1e9)
        tensors.append(F.logsigmoid(logits) / 16)
    return [x.to(dtype).requires_grad_() for x in tensors]


# One token, a chunk of 64 and its neighbour, and several; blocks of 64 or, for strong gates, of 8.
GATED = [(1, "trained"), (64, "trained"), (65, "strong"), (150, "strong"), (270, "trained")]


@pytest.mark.parametrize(("N", "strength"), GATED)
def test_equals_the_recurrence_with_all_gradients(N: int, strength: str) -> None:
    tensors = inputs_gated(N, strength)
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
    tensors = inputs_gated(650)
    assert relative_error(gated_linear_attention(*tensors), recurrence(*tensors)) <= 1e-12


@pytest.mark.parametrize("strength", ["trained", "half at -2000", "runs", "closed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strong_gates_neither_overflow_nor_round_weak_ones_away(strength: str, dtype: torch.dtype) -> None:
    """Inside in fp32, also for bf16, and in gradients."""
    tensors = inputs_gated(90, strength, dtype)
    y = gated_linear_attention(*tensors)
    assert y.dtype == torch.float32
    with torch.no_grad():
        assert relative_error(y, recurrence(*(x.double() for x in tensors))) <= 5e-6
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(y.square().sum(), tensors))


def test_gradients_twice() -> None:
    tensors = [x[:1, :1, :, :2].detach().requires_grad_() for x in inputs_gated(18)]
    assert torch.autograd.gradgradcheck(gated_linear_attention, tensors, fast_mode=True)


# The recurrences of Vision-RWKV, ViL and VMamba: formulas token by token in float64, with harsh keys and gates.


def rwkv6_by_tokens(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor) -> Tensor:
    rows = [(r * k * bonus[:, None]).sum(-1, keepdim=True) * v]
    for order in (range(r.shape[2]), range(r.shape[2] - 1, -1, -1)):
        state, found = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None]), {}
        for t in order:
            found[t] = (r[:, :, t, None] @ state).squeeze(2)
            state = log_decay[:, :, t, :, None].exp() * state + k[:, :, t, :, None] * v[:, :, t, None]
        rows.append(torch.stack([found[t] for t in sorted(found)], dim=2))
    return rows[0] + rows[1] + rows[2]


def mlstm_by_tokens(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    state, n = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None]), torch.zeros_like(k[:, :, 0])
    m, rows = torch.full_like(i[:, :, 0], -torch.inf), []
    for t in range(q.shape[2]):
        old, m = F.logsigmoid(f[:, :, t]) + m, torch.maximum(F.logsigmoid(f[:, :, t]) + m, i[:, :, t])
        decay, given = (old - m).exp()[..., None], (i[:, :, t] - m).exp()[..., None]
        state = decay[..., None] * state + (given * k[:, :, t])[..., None] * v[:, :, t, None]
        n, query = decay * n + given * k[:, :, t], q[:, :, t] / q.shape[3] ** 0.5
        norm = torch.maximum((query * n).sum(-1).abs(), (-m).exp()) + 1e-6
        rows.append((query[:, :, None] @ state).squeeze(2) / norm[..., None])
    return torch.stack(rows, dim=2)


def biwkv_matrix(w: Tensor, u: Tensor, num_tokens: int) -> Tensor:
    """Return the factors G `[C, T, T]` of `soft_vit.ops.rwkv` (rows: of the result) for w and u `[C]`."""
    t = torch.arange(num_tokens, device=w.device)
    length = -(-num_tokens // CHUNKS)
    first = (t // length * length)[:, None]
    w, distance, i = w[:, None, None], t[:, None] - t, t[None]
    decay = torch.exp(-w * distance.abs())
    left = (1 - w.exp()) * torch.exp(w * distance) * (i > first)
    near = torch.where(distance == 0, u[:, None, None].exp(), decay * w.exp()) + left
    return torch.where((i >= first) & (distance >= 0), near, decay)


def selective_scan_by_tokens(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Return what `selective_scan` does, token by token: the definition."""
    h, y = torch.zeros_like(u[:, 0]), []
    for t in range(u.shape[1]):
        h = torch.exp(delta[:, t] * A[:, 0]) * h + delta[:, t] * B[:, t] * u[:, t]
        y.append(C[:, t] * h)
    return torch.stack(y, dim=1)


def biwkv_by_pairs(w: Tensor, u: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (k - k.detach().amax(1, keepdim=True)).exp().mT[:, :, None] * biwkv_matrix(w, u, k.shape[1])
    return (weights @ v.mT[..., None] / weights.sum(-1)[..., None]).squeeze(3).mT


def reversed_mlstm(*tensors: Tensor) -> Tensor:
    return mlstm_by_tokens(*(x.flip(2) for x in tensors)).flip(2)


FORMS = {
    "rwkv6": (rwkv6, rwkv6_by_tokens),
    "mlstm": (mlstm, mlstm_by_tokens),
    "mlstm backward": (partial(mlstm, backward=True), reversed_mlstm),
    "biwkv": (biwkv, biwkv_by_pairs),
    "ssm": (selective_scan, selective_scan_by_tokens),
}


def inputs_recurrent(kind: str, N: int, harsh: bool, sizes: tuple[int, int, int] = (2, 3, 6)) -> list[Tensor]:
    """sizes: batch, heads and width of a head."""
    g, (batch, heads, width) = torch.Generator().manual_seed(N), sizes
    q, k, v, a = torch.randn(4, batch, heads, N, width, generator=g, dtype=torch.float64)
    if kind == "biwkv":
        w, u = 5 * torch.randn(2, width, generator=g, dtype=torch.float64) / N
        tensors = [w, u, (30 if harsh else 1) * k[:, 0], v[:, 0]]
    elif kind == "ssm":
        # Half of the tokens forget all, between others that forget little.
        steps = 1e3 * (k[0] > 0).double() + 1e-3 if harsh else F.softplus(k[0] - 2)
        rates = -torch.rand(heads, 1, width, generator=g, dtype=torch.float64)
        tensors = [v[0], steps, rates, q[0, ..., :1], q[0, ..., 1:2]]
    elif kind == "rwkv6":
        strong = torch.where(a < -0.5, -403.0, -0.02).double()
        tensors = [q, k, v, strong if harsh else -(1.5 * a - 1).exp(), torch.randn(heads, width, generator=g).double()]
    else:
        i, f = q[..., 0].clone(), a[..., 0].clone()
        tensors = [q, k, v, 16 * i if harsh else i, 100 * f if harsh else f + 4.5]
    return [x.detach().requires_grad_() for x in tensors]


# One token, fewer than a chunk, several chunks or just one more token than a square takes, and chunks with a remainder.
@pytest.mark.parametrize("harsh", [False, True])
@pytest.mark.parametrize("N", [1, 33, 71, 150])
@pytest.mark.parametrize("kind", FORMS)
def test_equals_the_formula_with_all_gradients(kind: str, N: int, harsh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soft_vit.ops.rwkv.EPS", 0.0)
    # 150 tokens are chunks of five.
    monkeypatch.setattr("soft_vit.ops.rwkv.FEW", 4)
    tensors, results = inputs_recurrent(kind, N, harsh), []
    for function in FORMS[kind]:
        y = function(*tensors)
        weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        how = dict(allow_unused=True, materialize_grads=True)
        results.append([y, *torch.autograd.grad((F.layer_norm(y, y.shape[-1:]) * weights).sum(), tensors, **how)])
    for found, expected in zip(*results, strict=True):
        assert (found - expected).norm() <= 1e-10 * expected.norm().clamp(min=1)
    with torch.no_grad():
        single = FORMS[kind][0](*(x.float() for x in tensors))
        error = relative_error(*(F.layer_norm(x.double(), x.shape[-1:]) for x in (single, results[1][0])))
        assert error <= 2e-5


@pytest.mark.parametrize("kind", FORMS)
def test_gradients_of_many_tokens_are_finite(kind: str) -> None:
    """Of fp32, with harsh inputs."""
    tensors = [x.detach().float().requires_grad_() for x in inputs_recurrent(kind, 16384, True, (1, 1, 4))]
    y = FORMS[kind][0](*tensors)
    assert all(x.isfinite().all() for x in (y, *torch.autograd.grad(y.square().sum(), tensors)))
