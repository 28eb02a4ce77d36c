"""Sequences, prefix tokens and masks: every attention against the tokens that count alone, or a dense formula."""

import doctest
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit import layers
from soft_vit.layers import ATTENTIONS, Attention
from soft_vit.layers.attention import base

DIM, HEADS = 12, 3

# Float64 on both sides; an inverse of a kernel with a ridge of 0.01 enlarges roundings by at most 1e2.
TOLERANCE = 1e-10

Case = tuple[str, dict[str, Any]]

# All tokens enter alike, so any of them may be left out.
ANY_MASK: list[Case] = [
    ("softmax", {}),
    ("softmax_one", {}),
    ("gaussian", {}),
    ("gaussian", {"normalize": True}),
    ("linear", {}),
    ("performer", {}),
    ("performer", {"kernel": "relu"}),
    ("efficient", {}),
    ("hydra", {}),
    ("sima", {}),
    ("cosformer", {}),
    ("gau", {"form": "quadratic"}),
    ("vq", {"num_codes": 5}),
    ("skyformer", {}),
    ("nystrom", {"local_kernel": 0}),
    ("nystrom", {"local_kernel": 0, "landmarks": "segment", "max_landmarks": (4,)}),
    ("agent", {"local_kernel": 0, "max_agents": (4,)}),
    ("soft", {"local_kernel": 0, "sampling": "avg"}),
    ("soft_norm", {"local_kernel": 0, "sampling": "avg", "num_bottleneck": 5}),
    ("soft_plus", {"local_kernel": 0, "sampling": "avg"}),
    ("none", {}),
]

# Windows, strides and convolutions begin at the first token, so the last ones may be left out.
TRAILING_MASK: list[Case] = [
    ("soft", {}),
    ("soft", {"num_bottleneck": 5}),
    ("soft_norm", {"sampling": "avg"}),
    ("soft_plus", {}),
    ("spatial_reduction", {}),
    ("nystrom", {}),
    ("agent", {}),
    ("focused", {}),
    ("inline", {}),
    ("rala", {}),
    ("mala", {}),
    ("mila", {}),
    ("ttt", {"rope": True}),
    ("gau", {"chunk_size": 8}),
    ("local", {}),
    ("atrous", {"dilation": 3}),
    ("sparse", {"dilation": 3}),
]

MAP_MASK: list[Case] = [
    ("local", {"kernel_size": 3}),
    ("atrous", {"dilation": 2}),
    ("sparse", {"dilation": 3}),
    ("focused", {}),
    ("inline", {}),
    ("rala", {}),
    ("mala", {}),
    ("mila", {}),
    ("ttt", {}),
    ("spatial_reduction", {}),
]

NO_MASK: list[tuple[str, dict[str, Any], tuple[int, ...], str]] = [
    ("linformer", {}, (20,), "places"),
    ("synthesizer", {}, (20,), "places"),
    ("polaformer", {}, (20,), "places"),
    ("longformer", {}, (20,), "fixed places"),
    ("bigbird", {}, (20,), "number of tokens"),
    ("reformer", {}, (20,), "number of tokens"),
    ("sparse", {}, (20,), "give dilation"),
    ("soft", {"sampling": "first"}, (20,), "'conv' or 'avg'"),
    ("spatial_reduction", {"linear": True}, (20,), "49 windows"),
    ("soft", {}, (4, 5), "sequence"),
    ("nystrom", {}, (4, 5), "sequence"),
    ("agent", {}, (4, 5), "sequence"),
    ("skyformer", {}, (4, 5), "sequence"),
]


def case_id(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(f"{k}={v}" for k, v in value.items()) or "default"


def make(name: str, feat_size: tuple[int, ...], **options: Any) -> Attention:
    """In float64, with weights large enough that the attention's matrix is far from uniform."""
    torch.manual_seed(0)
    attn = ATTENTIONS[name](DIM, HEADS, feat_size=feat_size, sr_ratio=2, **options, dtype=torch.float64)
    for module in attn.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=DIM**-0.5)
            nn.init.normal_(module.bias, std=0.3)
    for name, parameter in attn.named_parameters():
        if name in ("positional_encoding", "power", "scale"):
            nn.init.normal_(parameter, std=0.3)
    return attn.eval()


def tokens(batch: int, count: int) -> Tensor:
    return torch.randn(batch, count, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().norm() / expected.detach().norm().clamp(min=1e-300))


def check_mask(attn: Attention, feat_size: tuple[int, ...], mask: Tensor, shorter: list[tuple[int, ...]]) -> None:
    """Results and gradients of the tokens that count are those of these tokens alone, on the maps `shorter`."""
    prefix = mask.shape[1] - torch.Size(feat_size).numel()
    x = tokens(*mask.shape).requires_grad_()
    weight = torch.randn(x.shape, dtype=x.dtype)
    y = attn(x, feat_size, prefix, mask)
    assert y.isfinite().all()
    (grad,) = torch.autograd.grad((y * weight)[mask].sum(), x)
    assert not grad[~mask].any()
    for image, size in enumerate(shorter):
        keep = mask[image]
        alone = x.detach()[image : image + 1, keep].requires_grad_()
        expected = attn(alone, size, int(keep[:prefix].sum()))
        (expected_grad,) = torch.autograd.grad((expected * weight[image, keep]).sum(), alone)
        assert relative_error(y[image, keep], expected[0]) <= TOLERANCE
        assert relative_error(grad[image, keep], expected_grad[0]) <= TOLERANCE


@pytest.mark.parametrize(("name", "options"), ANY_MASK, ids=case_id)
def test_any_tokens_may_be_masked(name: str, options: dict[str, Any]) -> None:
    for prefix in (0, 2):
        mask = torch.ones(3, prefix + 23, dtype=torch.bool)
        mask[1, [prefix + 3, prefix + 9, prefix + 20]] = False
        mask[2, prefix::3] = False
        mask[2, : prefix // 2] = False
        check_mask(make(name, (23,), **options), (23,), mask, [(23,), (20,), (15,)])


@pytest.mark.parametrize(("name", "options"), TRAILING_MASK, ids=case_id)
def test_trailing_tokens_of_a_sequence_may_be_masked(name: str, options: dict[str, Any]) -> None:
    for prefix in (0, 2):
        mask = torch.ones(3, prefix + 23, dtype=torch.bool)
        mask[1, prefix + 16 :] = False
        mask[2, prefix + 5 :] = False
        mask[2, : prefix // 2] = False
        check_mask(make(name, (23,), **options), (23,), mask, [(23,), (16,), (5,)])


@pytest.mark.parametrize(("name", "options"), MAP_MASK, ids=case_id)
def test_trailing_rows_of_a_map_may_be_masked(name: str, options: dict[str, Any]) -> None:
    for prefix in (0, 2):
        mask = torch.ones(2, prefix + 7 * 5, dtype=torch.bool)
        mask[1, prefix + 4 * 5 :] = False
        mask[1, : prefix // 2] = False
        check_mask(make(name, (7, 5), **options), (7, 5), mask, [(7, 5), (4, 5)])


@pytest.mark.parametrize(("name", "options"), ANY_MASK + TRAILING_MASK, ids=case_id)
def test_prefix_tokens_alone_may_count(name: str, options: dict[str, Any]) -> None:
    attn, x = make(name, (9,), **options), tokens(2, 11).requires_grad_()
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, 2:] = False
    if name in ("soft", "soft_norm", "soft_plus"):
        with pytest.raises(ValueError, match="key_padding_mask"):
            attn(x, (9,), 2, mask)
        return
    y = attn(x, (9,), 2, mask)
    assert y.isfinite().all()
    (grad,) = torch.autograd.grad(y[mask].sum(), x)
    assert grad.isfinite().all()
    assert not grad[~mask].any()


def test_every_kind_takes_a_mask_or_says_why_not() -> None:
    assert {name for name, *_ in ANY_MASK + TRAILING_MASK + NO_MASK} == ATTENTIONS.keys()
    for name, options, feat_size, reason in NO_MASK:
        attn, mask = make(name, feat_size, **options), torch.ones(1, 20, dtype=torch.bool)
        with pytest.raises(ValueError, match=f"key_padding_mask must be None: .*{reason}"):
            attn(tokens(1, 20), feat_size, 0, mask)


@pytest.mark.parametrize("kind", [kind for kind, cls in ATTENTIONS.items() if not cls.needs_grid])
def test_kinds_without_a_grid_take_prefix_tokens_as_all_others(kind: str) -> None:
    x = tokens(2, 38)
    on_map, in_sequence = make(kind, (5, 7)), make(kind, (38,))
    torch.testing.assert_close(on_map(x, (5, 7), 3), in_sequence(x, (38,)), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [kind for kind in ATTENTIONS if kind != "none"])
def test_prefix_tokens_and_the_map_see_each_other(kind: str) -> None:
    attn, x = make(kind, (5, 7)), tokens(2, 38).requires_grad_()
    y = attn(x, (5, 7), 3)
    to_prefix, to_map = (torch.autograd.grad(part.sum(), x, retain_graph=True)[0] for part in (y[:, :3], y[:, 3:]))
    assert to_prefix[:, 3:].any(-1).float().mean() > 0.5
    assert to_map[:, :3].any(-1).all()


def test_softmax_one_has_one_more_in_its_denominator() -> None:
    attn, x = make("softmax_one", (5, 7)), tokens(2, 35)
    q, (k, v) = heads(attn.q(x)), (heads(part) for part in attn.kv(x).chunk(2, dim=-1))
    weights = scores(q, k).exp()
    mixed = weights @ v / (1 + weights.sum(-1, keepdim=True))
    torch.testing.assert_close(attn(x, (5, 7)), attn.proj(mixed.transpose(1, 2).flatten(2)), rtol=1e-12, atol=1e-12)


# Dense formulas for P prefix tokens before a map (Y, X), or a sequence as a map of one column.


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """`[B, N, C]` to `[B, H, N, C / H]`."""
    return x.unflatten(2, (count, -1)).transpose(1, 2)


def qkv(attn: Attention, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(heads(part) for part in attn.qkv(x).chunk(3, dim=-1))


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


def kernel(q: Tensor, k: Tensor) -> Tensor:
    return torch.exp(-(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / 2)


def convolve(maps: Tensor, conv: nn.Conv2d, groups: int) -> Tensor:
    """Maps `[B, C, Y, X]` by conv, its kernels repeated for all channels; of one column by a 1-D convolution."""
    repeat = 1 if groups == 1 else maps.shape[1] // conv.out_channels
    one_a_head = conv.out_channels == HEADS
    weight = conv.weight.repeat_interleave(repeat, 0) if one_a_head else conv.weight.repeat(repeat, 1, 1, 1)
    bias = None if conv.bias is None else conv.bias.repeat(repeat)
    if maps.shape[3] > 1:
        return F.conv2d(maps, weight, bias, conv.stride, conv.padding, groups=groups)
    assert weight.shape[3] == conv.stride[1] == 1
    return F.conv1d(maps[..., 0], weight[..., 0], bias, conv.stride[0], conv.padding[0], groups=groups)[..., None]


def behind(x: Tensor, conv: nn.Conv2d | None, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    """The depthwise convolution of values `[B, H, P + N, D]`, zero at prefix tokens."""
    if conv is None:
        return torch.zeros_like(x)
    maps = x[:, :, prefix:].transpose(1, 2).flatten(2).mT.unflatten(2, feat_size)
    return F.pad(heads(convolve(maps, conv, DIM).flatten(2).mT), (0, 0, prefix, 0))


def averages(x: Tensor, prefix: int, feat_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Of tokens `[B, H, P + N, D]` of the map over a grid of windows: `[B, H, M, D]`."""
    maps = x[:, :, prefix:].flatten(0, 1).mT.unflatten(2, feat_size)
    return F.adaptive_avg_pool2d(maps, grid).flatten(2).mT.unflatten(0, x.shape[:2])


def landmark_grid(attn: Attention, feat_size: tuple[int, int]) -> tuple[int, int]:
    """Windows of two by two, or two along a sequence, at most `attn.limit`."""
    limit = attn.limit or feat_size
    return min(max(1, feat_size[0] // 2), limit[0]), min(max(1, feat_size[1] // 2), limit[1])


def pattern_formula(near: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """One softmax over the pattern and all prefix tokens, which see all tokens."""

    def formula(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
        place = torch.arange(feat_size[0] * feat_size[1])
        row, column = place // feat_size[1], place % feat_size[1]
        pattern = near(row[:, None] - row, column[:, None] - column)
        q, k, v = qkv(attn, x)
        mask = F.pad(pattern, (prefix, 0, prefix, 0), value=True)
        return scores(q, k).masked_fill(~mask, float("-inf")).softmax(-1) @ v

    return formula


def longformer(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    centres = [
        [(2 * i + 1) * side // (2 * min(side, cells)) for i in range(min(side, cells))]
        for side, cells in zip(feat_size, attn.global_grid, strict=True)
    ]
    index = [*range(prefix), *(prefix + i * feat_size[1] + j for i in centres[0] for j in centres[1])]
    place = torch.arange(feat_size[0] * feat_size[1])
    row, column = place // feat_size[1], place % feat_size[1]
    mask = ((row[:, None] - row).abs() <= 1) & ((column[:, None] - column).abs() <= 1)
    mask = F.pad(mask, (prefix, 0, prefix, 0), value=False)
    mask[:, index] = True
    mask[index] = True
    q, k, v = qkv(attn, x)
    result = scores(q, k).masked_fill(~mask, float("-inf")).softmax(-1) @ v
    k, v = (heads(part) for part in attn.kv_global(x).chunk(2, dim=-1))
    from_global = scores(heads(attn.q_global(x)), k).softmax(-1) @ v
    is_global = torch.zeros(x.shape[1], dtype=torch.bool).index_fill(0, torch.tensor(index), True)
    return torch.where(is_global[:, None], from_global, result)


def spatial_reduction(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    maps = x[:, prefix:].mT.unflatten(2, feat_size)
    if attn.linear:
        maps = F.adaptive_avg_pool2d(maps, 7)
        reduced = F.gelu(attn.norm(attn.sr(maps).flatten(2).mT))
    else:
        reduced = attn.norm(convolve(maps, attn.sr, 1).flatten(2).mT)
    k, v = (heads(part) for part in attn.kv(torch.cat([x[:, :prefix], reduced], 1)).chunk(2, dim=-1))
    return scores(heads(attn.q(x)), k).softmax(-1) @ v


def linformer(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k, v = qkv(attn, x)
    k, v = (
        torch.cat([part[:, :, :prefix], weight.flatten(2) @ part[:, :, prefix:]], 2)
        for part, weight in ((k, attn.projection.weight_k), (v, attn.projection.weight_v))
    )
    return scores(q, k).softmax(-1) @ v


def synthesizer(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    (source,) = attn.scores.values()
    hidden = heads(source.hidden(x).relu())
    # Every token scores the places of the map, and prefix tokens have none.
    return F.pad(hidden @ source.weight.flatten(2) + source.bias.flatten(2), (prefix, 0)).softmax(-1) @ heads(attn.v(x))


def synthesizer_random(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    weight = attn.scores["random"].weight.flatten(3).flatten(1, 2)
    return F.pad(weight, (prefix, 0, prefix, 0)).softmax(-1) @ heads(attn.v(x))


def soft(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, v = heads(attn.q(x)) / attn.head_dim**0.25, heads(attn.v(x))
    if attn.sampling == "avg":
        bottleneck = averages(q, prefix, feat_size, landmark_grid(attn, feat_size))
    else:
        maps = q[:, :, prefix:].flatten(0, 1).mT.unflatten(2, feat_size)
        bottleneck = F.gelu(attn.sample_norm(convolve(maps, attn.sample, 1).flatten(2).mT)).unflatten(0, q.shape[:2])
    if attn.scale_bottleneck and attn.sampling == "conv":
        bottleneck = bottleneck / attn.head_dim**0.25
    if attn.log_bandwidth is not None:
        q, bottleneck = (attn.log_bandwidth.exp()[:, None, None] * tokens for tokens in (q, bottleneck))
    k1, a = kernel(q, bottleneck), kernel(bottleneck, bottleneck)
    scale = a.sum(-1).rsqrt()[..., None] if attn.normalize else 1.0
    inverse = torch.linalg.inv(a + attn.options.ridge * torch.eye(a.shape[-1], dtype=a.dtype))
    matrix = k1 @ (scale * inverse * scale.mT if attn.normalize else inverse) @ k1.mT
    if attn.normalize_rows:
        # Row sums of 1 and more: the least one is beside them a ten-thousandth.
        matrix = matrix / (matrix.sum(-1, keepdim=True) + 1e-4 / matrix.sum(-1, keepdim=True))
    return matrix @ v + behind(v, attn.local, prefix, feat_size)


def nystrom(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k, v = qkv(attn, x)
    q_landmarks, k_landmarks = (averages(part, prefix, feat_size, landmark_grid(attn, feat_size)) for part in (q, k))
    middle = torch.linalg.pinv(scores(q_landmarks, k_landmarks).softmax(-1))
    summary = middle @ (scores(q_landmarks, k).softmax(-1) @ v)
    return scores(q, k_landmarks).softmax(-1) @ summary + behind(v, attn.local, prefix, feat_size)


def agent(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k, v = qkv(attn, x)
    agents = averages(q, prefix, feat_size, landmark_grid(attn, feat_size))
    gathered = scores(agents, k).softmax(-1) @ v
    return scores(q, agents).softmax(-1) @ gathered + behind(v, attn.dwconv, prefix, feat_size)


def skyformer(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k, v = qkv(attn, x)
    q, k = q / attn.head_dim**0.25, k / attn.head_dim**0.25
    landmarks = torch.cat([averages(part, prefix, feat_size, landmark_grid(attn, feat_size)) for part in (q, k)], 2)
    a = kernel(landmarks, landmarks) + attn.ridge * torch.eye(landmarks.shape[2], dtype=x.dtype)
    return kernel(q, landmarks) @ torch.linalg.solve(a, kernel(landmarks, k) @ v)


def focused(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k, v = qkv(attn, x)
    q, k = (part.relu() + 1e-6 for part in (q, k))
    q, k = (part**3 * (part.norm(dim=-1) / (part**3).norm(dim=-1))[..., None] for part in (q, k))
    return F.normalize(q @ k.mT, p=1, dim=-1) @ v + behind(v, attn.dwconv, prefix, feat_size)


def inline(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k, v = qkv(attn, x)
    raw = scores(q, k) / x.shape[1]
    mixed = (raw - raw.mean(-1, keepdim=True) + 1 / x.shape[1]) @ v
    first, _, last = attn.residual
    m = F.gelu(F.conv1d(x.mean(1)[..., None], first.weight, first.bias, groups=HEADS))
    kernels = F.conv1d(m, last.weight, last.bias, groups=HEADS).reshape(*x.shape[::2], 1, 3, -1)
    maps = v[:, :, prefix:].transpose(1, 2).flatten(2).mT.unflatten(2, feat_size)
    padding = (1, kernels.shape[-1] // 2)
    local = torch.stack([F.conv2d(a, b, padding=padding, groups=DIM) for a, b in zip(maps, kernels, strict=True)])
    return mixed + F.pad(heads(local.flatten(2).mT), (0, 0, prefix, 0))


def turned(x: Tensor, prefix: int, feat_size: tuple[int, int], end_point: int = 0) -> Tensor:
    """Tokens `[..., P + N, C]` rotated by place, as products of complex numbers; a prefix token is not turned."""
    place, steps = torch.arange(feat_size[0] * feat_size[1]), torch.arange(x.shape[-1] // 4, dtype=x.dtype)
    theta = 10000 ** (-steps / max(1, len(steps) - end_point))
    angles = torch.cat([side[:, None] * theta for side in (place // feat_size[1], place % feat_size[1])], dim=1)
    angles = F.pad(angles, (0, 0, prefix, 0))
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2)


def rala(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k, v, gate = (heads(part) for part in attn.qkvo(x).chunk(4, dim=-1))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    weight = q.shape[2] * scores(q.mean(2, keepdim=True), k).softmax(-1)
    matrix = (turned(q, prefix, feat_size, 1) @ turned(k, prefix, feat_size, 1).mT) * weight
    matrix = matrix / ((q @ k.mT * weight).sum(-1, keepdim=True) + 1e-6 * q.shape[2])
    return (matrix @ v + behind(v, attn.lepe, prefix, feat_size)) * gate


def mala(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k, v, gate = (heads(part) for part in attn.qkvo(x).chunk(4, dim=-1))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    z = scores(q, k).mean(-1, keepdim=True)
    beta, gamma = 1 + 1 / (z + 1e-6), z / q.shape[2]
    matrix = beta * scores(*(turned(part, prefix, feat_size, 1) for part in (q, k))) / q.shape[2] - gamma
    return (matrix @ v + behind(v, attn.lepe, prefix, feat_size)) * gate


def mila(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k = (F.elu(part) + 1 for part in attn.qk(x).chunk(2, dim=-1))
    q_turned, k_turned = (turned(part, prefix, feat_size) for part in (q, k))
    normalizer = heads(q) @ heads(k).mean(2, keepdim=True).mT + 1e-6
    weights = heads(q_turned) @ heads(k_turned).mT / x.shape[1] / normalizer
    return weights @ heads(x) + behind(heads(x), attn.lepe, prefix, feat_size)


def polaformer(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    q, k, v = attn.qkv(x).chunk(3, dim=-1)
    q, k, v = (heads(part) for part in (q, k + F.pad(attn.positional_encoding, (0, 0, prefix, 0)), v))
    q, k = (part / heads(attn.scale.exp().log1p()) for part in (q, k))
    exponent = 1 + 4 / (1 + (-attn.power).exp())
    q_plus, q_minus, k_plus, k_minus = (part.relu() ** exponent for part in (q, -q, k, -k))
    matrices = (q_plus @ k_plus.mT + q_minus @ k_minus.mT, q_plus @ k_minus.mT + q_minus @ k_plus.mT)
    mixed = [
        matrix @ half / (matrix.sum(-1, keepdim=True) + 1e-6 * x.shape[1])
        for matrix, half in zip(matrices, v.split([2, 2], dim=-1), strict=True)
    ]
    mixed = torch.cat(mixed, dim=-1) + behind(v, attn.dwc, prefix, feat_size)
    return mixed * heads(attn.g(x))


def ttt(attn: Attention, x: Tensor, prefix: int, feat_size: tuple[int, int]) -> Tensor:
    """The inner models trained by autograd, each image's on its own, with losses as the paper states them."""

    def unit(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        return (x @ w1) * F.silu(x @ w2)

    def convolution(x: Tensor, w3: Tensor) -> Tensor:
        return F.conv2d(x, w3, padding=(1, w3.shape[3] // 2), groups=len(w3))

    results = []
    for tokens_of_image in attn.qkv(x).split(1):
        q, k, v = (part.contiguous() for part in tokens_of_image[..., : 3 * DIM].chunk(3, dim=-1))
        if attn.rope:
            q, k = turned(q, prefix, feat_size), turned(k, prefix, feat_size)
        q, k, v = heads(q), heads(k), heads(v)
        inner_loss = -(unit(k, attn.w1, attn.w2) * v).sum(-1).mean(-1).sum() / 3
        steps = torch.autograd.grad(inner_loss, (attn.w1, attn.w2), create_graph=True)
        inner = (w - g / (g.norm(dim=-2, keepdim=True) + 1) for w, g in zip((attn.w1, attn.w2), steps, strict=True))
        gated = unit(q, *inner)
        maps = tokens_of_image[:, prefix:, 3 * DIM :].mT.unflatten(2, feat_size).chunk(3, dim=1)
        inner_loss = -(convolution(maps[1], attn.w3) * maps[2]).sum() / 3 / (feat_size[0] * feat_size[1])
        (g,) = torch.autograd.grad(inner_loss, attn.w3, create_graph=True)
        y = convolution(maps[0], attn.w3 - g / (g.norm(dim=(2, 3), keepdim=True) + 1))
        y = F.pad(y.flatten(2).mT, (0, 0, prefix, 0))
        results.append(torch.cat([gated.transpose(1, 2).flatten(2), y], dim=-1))
    return torch.cat(results)[:, None]


FORMULAS: list[tuple[str, dict[str, Any], Callable[..., Tensor]]] = [
    ("local", {"kernel_size": 3}, pattern_formula(lambda y, x: (y.abs() <= 1) & (x.abs() <= 1))),
    ("atrous", {}, pattern_formula(lambda y, x: (y % 2 == 0) & (x % 2 == 0))),
    (
        "sparse",
        {"kernel_size": 3, "dilation": 2},
        pattern_formula(lambda y, x: (y.abs() <= 1) & (x.abs() <= 1) | (y % 2 == 0) & (x % 2 == 0)),
    ),
    ("longformer", {"kernel_size": 3}, longformer),
    ("spatial_reduction", {}, spatial_reduction),
    ("spatial_reduction", {"linear": True}, spatial_reduction),
    ("linformer", {"proj_k": 5}, linformer),
    ("synthesizer", {}, synthesizer),
    ("synthesizer", {"scores": "random"}, synthesizer_random),
    ("soft", {"inverse": "cholesky"}, soft),
    ("soft", {"inverse": "cholesky", "sampling": "avg"}, soft),
    ("soft_norm", {"inverse": "cholesky", "ridge": 0.01}, soft),
    ("soft_plus", {"inverse": "cholesky"}, soft),
    ("soft_plus", {"inverse": "cholesky", "sampling": "avg"}, soft),
    ("nystrom", {"inverse": "exact", "max_landmarks": (2, 1)}, nystrom),
    ("agent", {}, agent),
    ("skyformer", {}, skyformer),
    ("focused", {}, focused),
    ("inline", {}, inline),
    ("polaformer", {}, polaformer),
    ("rala", {}, rala),
    ("mala", {"local_kernel": 3}, mala),
    ("mila", {}, mila),
    ("ttt", {}, ttt),
    ("ttt", {"rope": True}, ttt),
]


@pytest.mark.parametrize(("feat_size", "prefix"), [((5, 7), 3), ((23,), 0), ((23,), 2)], ids=str)
@pytest.mark.parametrize(("name", "options", "formula"), FORMULAS, ids=lambda v: "" if callable(v) else case_id(v))
def test_equals_the_dense_formula(
    name: str, options: dict[str, Any], formula: Callable[..., Tensor], feat_size: tuple[int, ...], prefix: int
) -> None:
    grid = (feat_size[0], 1) if len(feat_size) == 1 else feat_size
    attn, results = make(name, feat_size, **options), []
    x = tokens(2, prefix + grid[0] * grid[1]).requires_grad_()
    project = getattr(attn, "proj", nn.Identity())
    for y in (attn(x, feat_size, prefix), project(formula(attn, x, prefix, grid).transpose(1, 2).flatten(2))):
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *attn.parameters()])])
    for found, expected in zip(*results, strict=True):
        # Some gradients are zero, such as that of a bias that no softmax depends on.
        assert (found - expected).norm() <= TOLERANCE * expected.norm().clamp(min=1)


def test_every_kind_with_a_rule_for_prefix_tokens_has_a_formula() -> None:
    assert {name for name, *_ in FORMULAS} == {name for name, cls in ATTENTIONS.items() if cls.needs_grid}


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_what_does_not_fit_is_named(kind: str) -> None:
    """Each in one sentence."""
    attn, in_sequence = make(kind, (4, 5)), make(kind, (20,))
    x = tokens(2, 20)
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: attn(x, (4, 4)), "(2, 20, 12)"),
        (lambda: attn(x, (4, 5), 1), "1 prefix tokens"),
        (lambda: attn(x, (0, 5), 20), "(0, 5)"),
        (lambda: attn(x, (20,)), "(H, W), got (20,)"),
        (lambda: in_sequence(x, 20), "(N,), got 20"),
        (lambda: in_sequence(x, (4, 5)), "(N,), got (4, 5)"),
        (lambda: make(kind, (5,)).forward(x, (5,)), "(2, 20, 12)"),
        (lambda: ATTENTIONS[kind](DIM, 5, feat_size=(20,)), "5 heads do not divide the width 12"),
    ]
    if not in_sequence.no_mask:
        full = torch.ones(2, 20, dtype=torch.bool)
        without_any = full & torch.tensor([[True], [False]])
        mistakes += [
            (lambda: in_sequence(x, (20,), 0, full[:, :19]), "(2, 19)"),
            (lambda: in_sequence(x, (20,), 0, full[None]), "(1, 2, 20)"),
            (lambda: in_sequence(x, (20,), 0, full.float()), "torch.float32"),
            (lambda: in_sequence(x, (20,), 0, without_any), "True in each row"),
        ]
    for mistake, words in mistakes:
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            mistake()
        assert re.fullmatch(r"[^\n]*\.", str(caught.value))


def test_more_bottleneck_tokens_than_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="num_bottleneck=21"):
        make("soft", (20,), num_bottleneck=21)


def test_a_mask_without_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens"):
        make("soft", (20,))(tokens(1, 20), (20,), 0, torch.arange(20)[None] % 2 == 0)


def test_docstring_examples_run() -> None:
    names = {**vars(layers), "torch": torch}
    (example,) = doctest.DocTestFinder(recurse=False).find(base.Attention, globs=names)
    assert doctest.DocTestRunner().run(example) == (0, 5)
