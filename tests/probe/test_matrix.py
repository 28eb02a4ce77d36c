"""The matrix of every attention: it reproduces the attention's output, and it is the one of the published formula."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers import ATTENTIONS, Attention
from soft_vit.layers.attention.longformer import global_positions
from soft_vit.ops.layout import Layout
from soft_vit.probe import matrix as module
from soft_vit.probe.attentions import switched_off
from soft_vit.probe.matrix import attention_matrix, watch_attention

DIM, HEADS, GRID = 24, 3, (7, 9)
N = GRID[0] * GRID[1]

# Float64 on both sides, sums of some hundred terms in another order, 1e3 roundings of 2.2e-16; an inverse of a kernel
# with a ridge of 0.01 enlarges them by at most 1e2.
TOLERANCE = 1e-11

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("soft", {"sampling": "random", "local_kernel": 0}),
    ("soft", {"inverse": "cholesky", "max_bottleneck": (2, 2)}),
    ("gaussian", {"normalize": True}),
    ("spatial_reduction", {"linear": True}),
    ("linear", {"features": "relu"}),
    ("linformer", {"sharing": "none"}),
    ("linformer", {"sharing": "kv"}),
    ("performer", {"kernel": "relu"}),
    ("nystrom", {"landmarks": "segment", "max_landmarks": None, "local_kernel": 0}),
    ("atrous", {"dilation": 4}),
    ("reformer", {"chunk_size": 16}),
    ("bigbird", {"block_size": 8}),
    ("synthesizer", {"scores": "random"}),
    ("synthesizer", {"scores": "dense+factorized_dense+factorized_random"}),
    ("gau", {"form": "quadratic"}),
    ("gau", {"chunk_size": 16}),
]
# The control has no matrix but zero, and what is not linear in its values has none.
CASES = [(name, {}) for name, cls in ATTENTIONS.items() if name != "none" and hasattr(cls, "attend")] + VARIANTS


def case_id(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(f"{k}={v}" for k, v in value.items()) or "default"


def make(name: str, **options: Any) -> Attention:
    """An attention in float64 with weights large enough that its matrix is far from uniform."""
    attn = ATTENTIONS[name](DIM, HEADS, feat_size=GRID, sr_ratio=2, **options, dtype=torch.float64)
    for layer in attn.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=DIM**-0.5)
            nn.init.normal_(layer.bias, std=0.3)
    for parameter_name, parameter in attn.named_parameters():
        if parameter_name in ("positional_encoding", "power", "scale"):
            nn.init.normal_(parameter, std=0.3)
    return attn.eval()


def tokens() -> Tensor:
    return torch.randn(2, N, DIM, dtype=torch.float64)


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """`[B, N, C]` to `[B, H, N, C / H]`."""
    return x.unflatten(2, (count, -1)).transpose(1, 2)


def values_of(attn: Attention, x: Tensor) -> Tensor:
    """The values `[B, H, M, D]` by the layer that makes them, by its usual names."""
    if hasattr(attn, "qkv"):
        return heads(attn.qkv(x).chunk(3, dim=-1)[2], attn.num_heads)
    if hasattr(attn, "qkvo"):
        return heads(attn.qkvo(x).chunk(4, dim=-1)[2])
    if hasattr(attn, "kv"):
        x = attn.reduce(x, Layout(GRID)) if hasattr(attn, "reduce") else x
        return heads(attn.kv(x).chunk(2, dim=-1)[1])
    if hasattr(attn, "uv"):
        return F.silu(attn.uv(x)).chunk(2, dim=-1)[1][:, None]
    return heads(attn.v(x) if hasattr(attn, "v") else x)


def by_halves(matrix: Tensor, v: Tensor) -> Tensor:
    """The result where both halves of a head have a matrix, one after the other."""
    halves = v.unflatten(3, (2, -1)).transpose(2, 3).flatten(1, 2)
    return (matrix @ halves).unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)


def output_by(matrix: Tensor, attn: Attention, x: Tensor) -> Tensor:
    """What attn returns for x if its attention is this matrix."""
    v = values_of(attn, x)
    mixed = matrix @ v if matrix.shape[1] <= HEADS or v.shape[1] > HEADS else by_halves(matrix, v)
    if hasattr(attn, "kv_global"):
        index = global_positions(GRID, attn.global_grid, x.device)
        mixed[:, :, index] = matrix[:, :, index] @ heads(attn.kv_global(x).chunk(2, dim=-1)[1])
    if getattr(attn, "local", None) is not None:
        maps = v.permute(0, 3, 1, 2).reshape(-1, HEADS, *GRID)
        maps = F.conv2d(maps, attn.local.weight, padding=attn.local.weight.shape[-1] // 2, groups=HEADS)
        mixed = mixed + maps.reshape(2, -1, HEADS, N).permute(0, 2, 3, 1)
    if hasattr(attn, "residual"):
        kernels = attn.residual(x.mean(1)[..., None]).reshape(2, DIM, 1, 3, 3)
        maps = v.transpose(1, 2).flatten(2).mT.unflatten(2, GRID)
        local = [F.conv2d(m, kernel, padding=1, groups=DIM) for m, kernel in zip(maps, kernels, strict=True)]
        mixed = mixed + heads(torch.stack(local).flatten(2).mT)
    conv = next((getattr(attn, name) for name in ("dwconv", "dwc", "lepe") if hasattr(attn, name)), None)
    if conv is not None:
        kernels = conv.weight.repeat(DIM // conv.out_channels, 1, 1, 1)
        bias = conv.bias.repeat(DIM // conv.out_channels)
        maps = v.transpose(1, 2).flatten(2).mT.unflatten(2, GRID)
        maps = F.conv2d(maps, kernels, bias, padding=conv.padding, groups=DIM)
        mixed = mixed + heads(maps.flatten(2).mT)
    x_mixed = mixed.transpose(1, 2).flatten(2)
    if hasattr(attn, "g"):
        x_mixed = x_mixed * attn.g(x)
    if hasattr(attn, "uv"):
        x_mixed = x_mixed * F.silu(attn.uv(x)).chunk(2, dim=-1)[0]
    if hasattr(attn, "qkvo"):
        x_mixed = x_mixed * attn.qkvo(x).chunk(4, dim=-1)[3]
    return attn.proj(x_mixed) if hasattr(attn, "proj") else x_mixed


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)
def test_matrix_reproduces_the_output(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Several runs of columns, the last one shorter.
    monkeypatch.setattr(module, "COLUMNS", 20)
    attn, x, matrices = make(name, **options), tokens(), []
    expected = attn(x, GRID)
    with watch_attention(attn, matrices.append):
        watched = attn(x, GRID)
    assert torch.equal(watched, expected)
    assert watched.requires_grad
    (matrix,) = matrices
    assert matrix.shape[:3] == (2, {"gau": 1, "hydra": DIM, "polaformer": 2 * HEADS}.get(name, HEADS), N)
    with torch.no_grad():
        assert relative_error(output_by(matrix, attn, x), expected) <= TOLERANCE


def queries_and_keys(attn: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    q, k, _ = attn.qkv(x).chunk(3, dim=-1)
    return heads(q), heads(k)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


def masked_softmax(attn: Attention, x: Tensor, mask: Tensor) -> Tensor:
    return scores(*queries_and_keys(attn, x)).masked_fill(~mask, float("-inf")).softmax(-1)


def kernel(q: Tensor, k: Tensor) -> Tensor:
    return torch.exp(-(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / 2)


def offsets() -> tuple[Tensor, Tensor]:
    """Rows and columns between two tokens of the map, each `[N, N]`."""
    place = torch.arange(N)
    rows, columns = place // GRID[1], place % GRID[1]
    return rows[:, None] - rows, columns[:, None] - columns


def softmax(attn: Attention, x: Tensor) -> Tensor:
    return scores(heads(attn.q(x)), heads(attn.kv(x).chunk(2, dim=-1)[0])).softmax(-1)


def gaussian(attn: Attention, x: Tensor) -> Tensor:
    q = heads(attn.q(x)) / attn.head_dim**0.25
    return kernel(q, q)


def soft(attn: Attention, x: Tensor) -> Tensor:
    q = heads(attn.q(x)) / attn.head_dim**0.25
    bottleneck = attn.sample_bottleneck(q, Layout(GRID))
    k1, a = kernel(q, bottleneck), kernel(bottleneck, bottleneck)
    scale = a.sum(-1).rsqrt() if attn.normalize else a.new_ones(a.shape[:-1])
    inverse = torch.linalg.inv(a + attn.options.ridge * torch.eye(a.shape[-1], dtype=a.dtype))
    return k1 @ (scale[..., :, None] * inverse * scale[..., None, :]) @ k1.mT


def window_averages(x: Tensor) -> Tensor:
    """Of tokens `[B, H, N, D]` over windows of two by two, or by three where one is left over."""
    return F.adaptive_avg_pool2d(x.mT.unflatten(3, GRID).flatten(0, 1), (3, 4)).flatten(2).mT.unflatten(0, (2, HEADS))


def nystrom(attn: Attention, x: Tensor) -> Tensor:
    q, k = queries_and_keys(attn, x)
    q_landmarks, k_landmarks = window_averages(q), window_averages(k)
    middle = torch.linalg.pinv(scores(q_landmarks, k_landmarks).softmax(-1))
    return scores(q, k_landmarks).softmax(-1) @ middle @ scores(q_landmarks, k).softmax(-1)


def linear(attn: Attention, x: Tensor) -> Tensor:
    q, k = (F.elu(part) + 1 for part in queries_and_keys(attn, x))
    return F.normalize(q @ k.mT, p=1, dim=-1)


def linear_relu(attn: Attention, x: Tensor) -> Tensor:
    q, k = (part.relu() for part in queries_and_keys(attn, x))
    return F.normalize(q @ k.mT, p=1, dim=-1)


def cosformer(attn: Attention, x: Tensor) -> Tensor:
    q, k = (part.relu() for part in queries_and_keys(attn, x))
    place = torch.arange(N, dtype=x.dtype)
    return F.normalize(q @ k.mT * torch.cos(torch.pi / 2 * (place[:, None] - place) / N), p=1, dim=-1)


def focused(attn: Attention, x: Tensor) -> Tensor:
    q, k = (
        part.pow(3) * (part.norm(dim=-1, keepdim=True) / part.pow(3).norm(dim=-1, keepdim=True))
        for part in (part.relu() + 1e-6 for part in queries_and_keys(attn, x))
    )
    return F.normalize(q @ k.mT, p=1, dim=-1)


def inline(attn: Attention, x: Tensor) -> Tensor:
    raw = scores(*queries_and_keys(attn, x)) / N
    return raw - raw.mean(-1, keepdim=True) + 1 / N


def polaformer(attn: Attention, x: Tensor) -> Tensor:
    """A matrix for pairs of like signs and one for pairs of unlike signs, for each head."""
    q, k, _ = attn.qkv(x).chunk(3, dim=-1)
    q, k = (heads(part / F.softplus(attn.scale)) for part in (q, k + attn.positional_encoding))
    exponent = 1 + 4 * attn.power.sigmoid()
    q_plus, q_minus, k_plus, k_minus = (part.relu() ** exponent for part in (q, -q, k, -k))
    like, unlike = q_plus @ k_plus.mT + q_minus @ k_minus.mT, q_plus @ k_minus.mT + q_minus @ k_plus.mT
    both = torch.stack([like, unlike], dim=2).flatten(1, 2)
    return both / (both.sum(-1, keepdim=True) + 1e-6 * N)


def efficient(attn: Attention, x: Tensor) -> Tensor:
    q, k = queries_and_keys(attn, x)
    return q.softmax(-1) @ k.softmax(-2).mT


def sima(attn: Attention, x: Tensor) -> Tensor:
    q, k = (part / part.abs().sum(-2, keepdim=True) for part in queries_and_keys(attn, x))
    return q @ k.mT


def hydra(attn: Attention, x: Tensor) -> Tensor:
    q, k, _ = attn.qkv(x).chunk(3, dim=-1)
    q, k = (part / part.square().sum(-1, keepdim=True).sqrt() for part in (q, k))
    return q.mT[..., :, None] * k.mT[..., None, :]


def agent(attn: Attention, x: Tensor) -> Tensor:
    q, k = queries_and_keys(attn, x)
    agents = window_averages(q)
    return scores(q, agents).softmax(-1) @ scores(agents, k).softmax(-1)


def skyformer(attn: Attention, x: Tensor) -> Tensor:
    """By the Nystroem form of the kernel between all queries and keys: its corner of queries against keys."""
    q, k = (part / attn.head_dim**0.25 for part in queries_and_keys(attn, x))
    both, landmarks = torch.cat([q, k], dim=2), torch.cat([window_averages(q), window_averages(k)], dim=2)
    middle = kernel(landmarks, landmarks) + attn.ridge * torch.eye(2 * 12, dtype=x.dtype)
    lifted = kernel(both, landmarks) @ torch.linalg.inv(middle) @ kernel(landmarks, both)
    return lifted[:, :, :N, N:]


def local(attn: Attention, x: Tensor) -> Tensor:
    rows, columns = offsets()
    return masked_softmax(attn, x, torch.maximum(rows.abs(), columns.abs()) <= 1)


def atrous(attn: Attention, x: Tensor) -> Tensor:
    rows, columns = offsets()
    return masked_softmax(attn, x, (rows % 4 == 0) & (columns % 4 == 0))


def sparse(attn: Attention, x: Tensor) -> Tensor:
    rows, columns = offsets()
    near = torch.maximum(rows.abs(), columns.abs()) <= 2
    return masked_softmax(attn, x, near | (rows % 4 == 0) & (columns % 4 == 0))


# The formulas of other kinds are in their tests, in tests/layers/attention; those of rala and mala in test_layouts.py.
FORMULAS = [
    (soft, "soft", {"inverse": "cholesky"}),
    (soft, "soft_norm", {"inverse": "cholesky"}),
    (softmax, "softmax", {}),
    (gaussian, "gaussian", {}),
    (nystrom, "nystrom", {"inverse": "exact"}),
    (linear, "linear", {}),
    (local, "local", {"kernel_size": 3}),
    (atrous, "atrous", {"dilation": 4}),
    (sparse, "sparse", {"kernel_size": 5, "dilation": 4}),
    (linear_relu, "linear", {"features": "relu"}),
    (cosformer, "cosformer", {}),
    (focused, "focused", {}),
    (inline, "inline", {}),
    (polaformer, "polaformer", {}),
    (efficient, "efficient", {}),
    (sima, "sima", {}),
    (hydra, "hydra", {}),
    (agent, "agent", {}),
    (skyformer, "skyformer", {}),
]


@pytest.mark.parametrize(("formula", "name", "options"), FORMULAS, ids=[case[1] for case in FORMULAS])
def test_matrix_is_that_of_the_formula(formula: Any, name: str, options: dict[str, Any]) -> None:
    attn, x = make(name, **options), tokens()
    with torch.no_grad():
        expected = formula(attn, x)
    matrix = attention_matrix(attn, x, GRID)
    assert matrix.shape == expected.shape
    assert relative_error(matrix, expected) <= TOLERANCE


@pytest.mark.parametrize("name", ["performer", "reformer"])
def test_matrix_follows_redrawn_features(name: str) -> None:
    attn, x = make(name, **({"chunk_size": 16} if name == "reformer" else {})), tokens()
    before = attention_matrix(attn, x, GRID)
    assert torch.equal(attention_matrix(attn, x, GRID), before)
    attn.redraw()
    with torch.no_grad():
        matrix = attention_matrix(attn, x, GRID)
        assert not torch.equal(matrix, before)
        assert relative_error(output_by(matrix, attn, x), attn(x, GRID)) <= TOLERANCE


def test_random_choices_are_those_of_the_watched_forward() -> None:
    attn, x, matrices = make("soft", sampling="random").train(), tokens(), []
    with torch.no_grad():
        for _ in range(2):
            with watch_attention(attn, matrices.append):
                y = attn(x, GRID)
            assert relative_error(output_by(matrices[-1], attn, x), y) <= TOLERANCE
    assert not torch.equal(*matrices)


def test_dropout_of_the_attention_is_left_out() -> None:
    attn, x = make("softmax", attn_drop=0.5), tokens()
    matrix = attention_matrix(attn, x, GRID)
    attn.train()
    assert torch.equal(attention_matrix(attn, x, GRID), matrix)
    assert attn.training


def test_nothing_stays_behind_when_the_visitor_fails() -> None:
    attn, x = make("soft"), tokens()

    def fail(matrix: Tensor) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"), watch_attention(attn, fail):
        attn(x, GRID)
    assert "attend" not in vars(attn)
    assert not attn.training
    assert attention_matrix(attn, x, GRID).shape == (2, HEADS, N, N)


def test_contexts_lie_within_one_another() -> None:
    attn, x, outer, inner = make("soft"), tokens(), [], []
    matrix, expected = attention_matrix(attn, x, GRID), attn(x, GRID)
    with watch_attention(attn, outer.append):
        with watch_attention(attn, inner.append):
            assert torch.equal(attn(x, GRID), expected)
        assert len(outer) == len(inner) == 1
        attn(x, GRID)
    assert len(outer) == 2
    assert len(inner) == 1
    assert all(torch.equal(found, matrix) for found in outer + inner)
    assert "attend" not in vars(attn)


def test_the_matrix_of_an_attention_that_is_switched_off_is_zero() -> None:
    attn, x = make("soft"), tokens()
    with switched_off(attn):
        off = attn(x, GRID)
        assert not attention_matrix(attn, x, GRID).any()
        assert torch.equal(attn(x, GRID), off)
    assert attention_matrix(attn, x, GRID).any()


def test_an_attention_without_a_matrix_is_refused() -> None:
    class Shift(Attention):
        def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
            return x.roll(1, dims=1)

    with pytest.raises(ValueError, match="Shift"):
        attention_matrix(Shift(DIM, HEADS), tokens(), GRID)
