"""The attentions, a row for each set of options: the masks it takes, its cost, and the formula of its matrix.

Formulas are dense, for P prefix tokens before a map (Y, X) or a sequence, which is a map of one column. They return the
matrix `[B, H, P + N, M]` by which an attention mixes its values; `output_by` adds what else it computes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers import ATTENTIONS
from soft_vit.layers.attention.focused import FlattenAttention
from soft_vit.ops.linear import linear_attention_init, linear_attention_step

DIM, HEADS = 12, 3
# Weights that begin at or near zero.
WEIGHTS = ("q_conv.weight", "k_conv.weight", "w1", "w2", "w3", "linear.w1", "linear.w2")
WEIGHTS += ("time_maa_w1", "time_maa_w2", "time_decay_w1", "time_decay_w2", "spatial_first")
WEIGHTS += ("q_maps", "k_maps")
WEIGHTS += ("A_logs", "Ds")
WEIGHTS += tuple(f"mlstm_cell.{gate}.weight" for gate in ("igate", "fgate"))
# The focused attention of the released models is in no table.
CLASSES = {**ATTENTIONS, "flatten": FlattenAttention}

Size = tuple[int, int]
Formula = Callable[[Any, Tensor, int, Size], Tensor]


@dataclass(frozen=True)
class Case:
    """A row.

    uses: where it is tested: "contract"; "masks" and "maps" where tokens of a sequence or a map may be masked.
    """

    kind: str
    options: dict[str, Any]
    uses: frozenset[str]
    formula: Formula | None
    cost: str

    def __str__(self) -> str:
        return "-".join([self.kind, *(f"{name}={value}" for name, value in self.options.items())])


def case(kind: str, uses: str = "", formula: Formula | None = None, cost: str = "", **options: Any) -> Case:
    return Case(kind, options, frozenset(uses.split()), formula, cost)


def every(cases: list[Case]) -> pytest.MarkDecorator:
    """Parametrise a test by cases."""
    return pytest.mark.parametrize("case", cases, ids=str)


def make(
    case: Case, feat_size: tuple[int, ...], dim: int = DIM, num_heads: int = HEADS, dtype: Any = torch.float64
) -> Any:
    """An attention with weights large enough that its matrix is far from uniform."""
    torch.manual_seed(0)
    attn = CLASSES[case.kind](
        dim, num_heads, feat_size=feat_size, sr_ratio=min(2, *feat_size), dtype=dtype, **case.options
    )
    for module in attn.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=dim**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.3)
    for name, parameter in attn.named_parameters():
        if name in ("positional_encoding", "power", "scale", "offset", "log_bandwidth", *WEIGHTS):
            nn.init.normal_(parameter, std=1.0 if name == "scale" else 0.3)
    return attn.eval()


def tokens(batch: int, count: int, dim: int = DIM, seed: int = 1, dtype: Any = torch.float64) -> Tensor:
    return torch.randn(batch, count, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def randomize(model: nn.Module) -> Any:
    """Draw weights with which attention is far from uniform."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    return model


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().norm() / expected.detach().norm().clamp(min=1e-300))


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """`[B, N, C]` to `[B, H, N, C / H]`."""
    return x.unflatten(2, (count, -1)).transpose(1, 2)


def projected(attn: Any, x: Tensor, part: str) -> Tensor:
    """Queries q, keys k, values v or a gate g `[B, N, C]` of tokens, by the first layer that projects to them."""
    layer, parts = next((layer, parts) for layer, parts in attn.projections.items() if part in parts)
    return getattr(attn, layer)(x).chunk(len(parts), dim=-1)[parts.index(part)]


def queries_and_keys(attn: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return heads(projected(attn, x, "q")), heads(projected(attn, x, "k"))


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


def kernel(q: Tensor, k: Tensor) -> Tensor:
    return torch.exp(-(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / 2)


def rows_of_one(weights: Tensor) -> Tensor:
    return F.normalize(weights, p=1, dim=-1)


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


def averages(x: Tensor, prefix: int, feat_size: Size, grid: Size) -> Tensor:
    """Of tokens `[B, H, P + N, D]` of the map over a grid of windows: `[B, H, M, D]`."""
    maps = x[:, :, prefix:].flatten(0, 1).mT.unflatten(2, feat_size)
    return F.adaptive_avg_pool2d(maps, grid).flatten(2).mT.unflatten(0, x.shape[:2])


def landmark_grid(attn: Any, feat_size: Size) -> Size:
    """Windows of two by two, or two along a sequence, at most `attn.limit`."""
    limit = attn.limit or feat_size
    return min(max(1, feat_size[0] // 2), limit[0]), min(max(1, feat_size[1] // 2), limit[1])


def landmarks(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    return averages(x, prefix, feat_size, landmark_grid(attn, feat_size))


def decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal linear attention, a token a step."""
    state, steps = linear_attention_init(k, v), []
    for token in zip(q.unbind(2), k.unbind(2), v.unbind(2), strict=True):
        x, state = linear_attention_step(state, *token)
        steps.append(x)
    return torch.stack(steps, 2)


def softmax(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    weights = scores(heads(attn.q(x)), heads(attn.kv(x).chunk(2, dim=-1)[0])).exp()
    return weights / (weights.sum(-1, keepdim=True) + float(isinstance(attn, ATTENTIONS["softmax_one"])))


def gaussian(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q = heads(attn.q(x)) / attn.head_dim**0.25
    a = kernel(q, q)
    scale = a.sum(-1, keepdim=True).rsqrt()
    return scale * a * scale.mT if attn.normalize else a


def linear(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (F.elu(part) + 1 if attn.features == "elu" else part.relu() for part in queries_and_keys(attn, x))
    return rows_of_one(q @ k.mT)


def performer(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (part / attn.head_dim**0.25 for part in queries_and_keys(attn, x))
    if attn.kernel == "relu":
        q, k = ((part @ attn.projection.mT).relu() + 1e-3 for part in (q, k))
    else:
        q, k = ((part @ attn.projection.mT - part.square().sum(-1, keepdim=True) / 2).exp() for part in (q, k))
    return rows_of_one(q @ k.mT)


def hedgehog(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (part @ maps for part, maps in zip(queries_and_keys(attn, x), (attn.q_maps, attn.k_maps), strict=True))
    return rows_of_one((q[..., :, None, :] + k[..., None, :, :]).cosh().sum(-1))


def cosformer(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (part.relu() for part in queries_and_keys(attn, x))
    place = torch.arange(x.shape[1], dtype=x.dtype)
    return rows_of_one(q @ k.mT * torch.cos(torch.pi / 2 * (place[:, None] - place) / x.shape[1]))


def efficient(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = queries_and_keys(attn, x)
    return q.softmax(-1) @ k.softmax(-2).mT


def sima(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (part / part.abs().sum(-2, keepdim=True) for part in queries_and_keys(attn, x))
    return q @ k.mT


def hydra(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k, _ = attn.qkv(x).chunk(3, dim=-1)
    q, k = (part / part.square().sum(-1, keepdim=True).sqrt() for part in (q, k))
    return q.mT[..., :, None] * k.mT[..., None, :]


def gau(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    z, count = F.silu(attn.z(x)), x.shape[1]
    q, k, *linear = (z * scale + offset for scale, offset in zip(attn.scale, attn.offset, strict=True))
    squares = scores(q, k).relu().square()
    if not linear:
        return squares[:, None] / count
    chunk = torch.arange(count) // attn.chunk_size
    together = (chunk[:, None] == chunk).to(x.dtype)
    return (together * squares / together.sum(-1, keepdim=True) + linear[0] @ linear[1].mT / count)[:, None]


def vq(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """The gradient of a quantised key is that of the mean of the keys of its code."""
    q, k = queries_and_keys(attn, x)
    code = (k[..., None, :] - attn.codebook[:, None]).square().sum(-1).argmin(-1)
    chosen = F.one_hot(code, attn.codebook.shape[1]).to(x.dtype)
    mean = (chosen / chosen.sum(2, keepdim=True).clamp(min=1)).mT @ k
    return scores(q, chosen @ (attn.codebook + mean - mean.detach())).softmax(-1)


def pattern(near: Callable[[Tensor, Tensor], Tensor]) -> Formula:
    """One softmax over the places that are near, by rows and columns between them, and all prefix tokens."""

    def formula(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
        place = torch.arange(feat_size[0] * feat_size[1])
        row, column = place // feat_size[1], place % feat_size[1]
        mask = near(row[:, None] - row, column[:, None] - column)
        mask = F.pad(mask, (prefix, 0, prefix, 0), value=True)
        return scores(*queries_and_keys(attn, x)).masked_fill(~mask, float("-inf")).softmax(-1)

    return formula


def global_tokens(attn: Any, prefix: int, feat_size: Size) -> list[int]:
    rows, columns = (
        [(2 * i + 1) * side // (2 * min(side, cells)) for i in range(min(side, cells))]
        for side, cells in zip(feat_size, attn.global_grid, strict=True)
    )
    return [*range(prefix), *(prefix + i * feat_size[1] + j for i in rows for j in columns)]


def longformer(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """Rows of global tokens are of values that are theirs alone."""
    index = global_tokens(attn, prefix, feat_size)
    place = torch.arange(feat_size[0] * feat_size[1])
    row, column = place // feat_size[1], place % feat_size[1]
    reach = attn.kernel_size // 2
    mask = ((row[:, None] - row).abs() <= reach) & ((column[:, None] - column).abs() <= reach)
    mask = F.pad(mask, (prefix, 0, prefix, 0), value=False)
    mask[:, index] = True
    matrix = scores(*queries_and_keys(attn, x)).masked_fill(~mask, float("-inf")).softmax(-1)
    k_global = heads(attn.kv_global(x).chunk(2, dim=-1)[0])
    of_global = scores(heads(attn.q_global(x)), k_global).softmax(-1)
    is_global = torch.zeros(x.shape[1], dtype=torch.bool).index_fill(0, torch.tensor(index), True)
    return torch.where(is_global[:, None], of_global, matrix)


def reduced(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """The tokens that become keys and values of `spatial_reduction`."""
    maps = x[:, prefix:].mT.unflatten(2, feat_size)
    if attn.linear:
        tokens = F.gelu(attn.norm(attn.sr(F.adaptive_avg_pool2d(maps, 7)).flatten(2).mT))
    else:
        tokens = attn.norm(convolve(maps, attn.sr, 1).flatten(2).mT)
    return torch.cat([x[:, :prefix], tokens], 1)


def spatial_reduction(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    k = attn.kv(reduced(attn, x, prefix, feat_size)).chunk(2, dim=-1)[0]
    return scores(heads(attn.q(x)), heads(k)).softmax(-1)


def linformer(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = queries_and_keys(attn, x)
    of_keys, of_values = (
        torch.block_diag(torch.eye(prefix, dtype=x.dtype), weight[0].flatten(1))
        for weight in (attn.projection.weight_k, attn.projection.weight_v)
    )
    return scores(q, of_keys @ k).softmax(-1) @ of_values


def synthesizer(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    (source,) = attn.scores.values()
    hidden = heads(source.hidden(x).relu())
    # Every token scores the places of the map; prefix tokens have none.
    return F.pad(hidden @ source.weight.flatten(2) + source.bias.flatten(2), (prefix, 0)).softmax(-1)


def synthesizer_random(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    weight = attn.scores["random"].weight.flatten(3).flatten(1, 2)
    return F.pad(weight, (prefix, 0, prefix, 0)).softmax(-1).expand(len(x), -1, -1, -1)


def newton(a: Tensor, normalize: bool) -> Tensor:
    """The released inverse of the kernels `[H, M, M]` of one image, by steps written out."""
    identity = torch.eye(a.shape[1], dtype=a.dtype)
    p = a if normalize else a + 0.01 * identity
    alpha = 1.8 / a.sum(2).amax(1)[:, None, None] ** 2
    if normalize:
        alpha = 2 / a.sum(2).max() ** 2
        for _ in range(10):
            if (identity - p @ (alpha * p)).abs().sum(1).max() <= 1.01:
                break
            alpha = alpha / 2
    inverse = alpha * p
    for _ in range(20):
        inverse = 2 * inverse - inverse @ p @ inverse
    return inverse


def soft(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q = heads(attn.q(x)) / attn.head_dim**0.25
    if attn.sampling == "avg":
        bottleneck = landmarks(attn, q, prefix, feat_size)
    elif attn.sampling == "first":
        rows, columns = landmark_grid(attn, feat_size)
        bottleneck = q[:, :, prefix : prefix + rows * columns]
    else:
        maps = q[:, :, prefix:].flatten(0, 1).mT.unflatten(2, feat_size)
        bottleneck = F.gelu(attn.sample_norm(convolve(maps, attn.sample, 1).flatten(2).mT)).unflatten(0, q.shape[:2])
        if attn.scale_bottleneck:
            bottleneck = bottleneck / attn.head_dim**0.25
    if attn.log_bandwidth is not None:
        q, bottleneck = (attn.log_bandwidth.exp()[:, None, None] * part for part in (q, bottleneck))
    k1, a = kernel(q, bottleneck), kernel(bottleneck, bottleneck)
    if attn.options.inverse == "newton":
        inverse = torch.stack([newton(image, attn.normalize) for image in a])
    else:
        inverse = torch.linalg.inv(a + attn.options.ridge * torch.eye(a.shape[-1], dtype=a.dtype))
    scale = a.sum(-1, keepdim=True).rsqrt()
    matrix = k1 @ (scale * inverse * scale.mT if attn.normalize else inverse) @ k1.mT
    if attn.normalize_rows:
        # Row sums are 1 and more: the smallest one counts for a ten-thousandth.
        matrix = matrix / (matrix.sum(-1, keepdim=True) + 1e-4 / matrix.sum(-1, keepdim=True))
    return matrix


def nystrom(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = queries_and_keys(attn, x)
    of_queries, of_keys = (landmarks(attn, part, prefix, feat_size) for part in (q, k))
    middle = torch.linalg.pinv(scores(of_queries, of_keys).softmax(-1))
    return scores(q, of_keys).softmax(-1) @ middle @ scores(of_queries, k).softmax(-1)


def agent(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = queries_and_keys(attn, x)
    agents = landmarks(attn, q, prefix, feat_size)
    return scores(q, agents).softmax(-1) @ scores(agents, k).softmax(-1)


def skyformer(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (part / attn.head_dim**0.25 for part in queries_and_keys(attn, x))
    both = torch.cat([landmarks(attn, part, prefix, feat_size) for part in (q, k)], 2)
    a = kernel(both, both) + attn.ridge * torch.eye(both.shape[2], dtype=x.dtype)
    return kernel(q, both) @ torch.linalg.solve(a, kernel(both, k))


def cubed(x: Tensor) -> Tensor:
    return x**3 * (x.norm(dim=-1) / (x**3).norm(dim=-1))[..., None]


def focused(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (cubed(part.relu() + 1e-6) for part in queries_and_keys(attn, x))
    return rows_of_one(q @ k.mT)


def encoded(attn: Any, x: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """Queries `[B, P + N, C]`, and keys with their encoding of positions."""
    q, k, _ = attn.qkv(x).chunk(3, dim=-1)
    return q, k + F.pad(attn.positional_encoding, (0, 0, prefix, 0))


def flatten(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """Focused over all channels, before these are divided among heads."""
    q, k = (heads(cubed((part.relu() + 1e-6) / attn.scale.exp().log1p())) for part in encoded(attn, x, prefix))
    return q @ k.mT / ((q @ k.mT).sum(-1, keepdim=True) + 1e-6 * x.shape[1])


def inline(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    raw = scores(*queries_and_keys(attn, x)) / x.shape[1]
    return raw - raw.mean(-1, keepdim=True) + 1 / x.shape[1]


def turned(x: Tensor, prefix: int, feat_size: Size, end_point: int = 0) -> Tensor:
    """Tokens `[..., P + N, C]` rotated by place, as products of complex numbers; a prefix token is not turned."""
    place, steps = torch.arange(feat_size[0] * feat_size[1]), torch.arange(x.shape[-1] // 4, dtype=x.dtype)
    theta = 10000 ** (-steps / max(1, len(steps) - end_point))
    angles = torch.cat([side[:, None] * theta for side in (place // feat_size[1], place % feat_size[1])], dim=1)
    angles = F.pad(angles, (0, 0, prefix, 0))
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2)


def rala(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (F.elu(part) + 1 for part in queries_and_keys(attn, x))
    weight = q.shape[2] * scores(q.mean(2, keepdim=True), k).softmax(-1)
    matrix = (turned(q, prefix, feat_size, 1) @ turned(k, prefix, feat_size, 1).mT) * weight
    return matrix / ((q @ k.mT * weight).sum(-1, keepdim=True) + 1e-6 * q.shape[2])


def mala(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (F.elu(part) + 1 for part in queries_and_keys(attn, x))
    z = scores(q, k).mean(-1, keepdim=True)
    beta, gamma = 1 + 1 / (z + 1e-6), z / q.shape[2]
    return beta * scores(*(turned(part, prefix, feat_size, 1) for part in (q, k))) / q.shape[2] - gamma


def mila(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    q, k = (F.elu(part) + 1 for part in attn.qk(x).chunk(2, dim=-1))
    q_turned, k_turned = (turned(part, prefix, feat_size) for part in (q, k))
    normalizer = heads(q) @ heads(k).mean(2, keepdim=True).mT + 1e-6
    return heads(q_turned) @ heads(k_turned).mT / x.shape[1] / normalizer


def vssd_inputs(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> list[Tensor]:
    """The gate, the values, keys and queries behind their convolution, and the weights of tokens."""
    inner, state = 2 * DIM, (attn.conv2d.out_channels - 2 * DIM) // 2
    gate, xbc, dt = attn.in_proj(x).split([inner, inner + 2 * state, HEADS], dim=-1)
    conv = attn.conv2d
    middle = conv.weight[:, 0, 1, conv.weight.shape[3] // 2]
    maps = convolve(xbc[:, prefix:].mT.unflatten(2, feat_size), conv, len(middle))
    xbc = F.silu(torch.cat([xbc[:, :prefix] * middle + conv.bias, maps.flatten(2).mT], dim=1))
    weights = (1 + (dt + attn.dt_bias).exp()).log() * attn.A_log.exp()
    return [gate, *xbc.split([inner, state, state], dim=-1), weights]


def vssd(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    _, _, k, q, weights = vssd_inputs(attn, x, prefix, feat_size)
    return (q @ k.mT)[:, None] * weights.mT[:, :, None]


def in_conv(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """The tokens of `gla` after its convolution, which leaves prefix tokens out, and its activation."""
    maps = convolve(x[:, prefix:].mT.unflatten(2, feat_size), attn.in_proj[0], DIM)
    return attn.act(torch.cat([x[:, :prefix], maps.flatten(2).mT], 1))


def gla(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """Products of gates from one token to another, for each channel, in both directions; a token sees itself twice."""
    u, width = in_conv(attn, x, prefix, feat_size), HEADS * (DIM // HEADS // 2)
    q, k, _ = (heads(part) for part in attn.qkv_proj(u).split([width, width, DIM], dim=-1))
    ahead, back = (heads(part).sigmoid() ** (1 / 16) for part in attn.gk_proj(u).split(width, dim=-1))
    t = torch.arange(x.shape[1])
    sums = ahead.log().cumsum(2), back.log().flip(2).cumsum(2).flip(2)
    seen = (t[:, None] >= t)[..., None], (t[:, None] <= t)[..., None]
    decays = sum((a[:, :, :, None] - a[:, :, None]).exp() * mask for a, mask in zip(sums, seen, strict=True))
    return attn.scale * (q[:, :, :, None] * k[:, :, None] * decays).sum(-1) / q.shape[-1] ** 0.5


def neighbours(x: Tensor, prefix: int, feat_size: Size, groups: int) -> Tensor:
    """Tokens whose channels, in quarters of each group, are those of the left, right, upper and lower neighbour."""
    (Y, X), found = feat_size, torch.zeros_like(x)
    for place in range(Y * X):
        row, column = divmod(place, X)
        for quarter, (down, right) in enumerate(((0, -1), (0, 1), (-1, 0), (1, 0))):
            y, z = row + down, column + right
            if 0 <= y < Y and 0 <= z < X:
                for channels in torch.arange(x.shape[2]).tensor_split(groups):
                    channel = channels.tensor_split(4)[quarter]
                    found[:, prefix + place, channel] = x[:, prefix + y * X + z, channel]
    return found


def shared(attn: Any, x: Tensor, prefix: int, feat_size: Size, part: str) -> Tensor:
    """What a layer of `rwkv` takes."""
    share = getattr(attn, f"spatial_mix_{part}")
    return share * x + (1 - share) * neighbours(x, prefix, feat_size, 1)


def rwkv(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """A matrix for each channel: exp(key) times the released factors of distances."""
    T, k = x.shape[1], attn.key(shared(attn, x, prefix, feat_size, "k"))
    w, u = attn.spatial_decay / T, attn.spatial_first / T
    length = -(-T // 32)
    factors = torch.empty(T, T, len(w), dtype=x.dtype)
    for t in range(T):
        first = t // length * length
        for i in range(T):
            left = (1 - w.exp()) * torch.exp(w * (t - i)) * (first < i <= t)
            near = first <= i <= t
            factors[t, i] = (u.exp() if i == t else torch.exp(-w * (abs(t - i) - near))) + left
    weights = factors * k.exp()[:, None]
    # The constant of the denominator is of the size of the largest weight, chunk by chunk.
    chunk = torch.arange(T) // length
    apart = (chunk[:, None] - chunk).abs() - (chunk[:, None] > chunk).long()
    tops = torch.stack([k[:, chunk == c].amax(1) for c in chunk.tolist()], 1)
    largest = (tops[:, None] - w * length * apart[..., None]).amax(2, keepdim=True).exp().detach()
    return (weights / (weights.sum(2, keepdim=True) + 1e-6 * largest)).permute(0, 3, 1, 2)


def dynamic_mixes(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> list[Tensor]:
    """What the layers of `rwkv6` take, in the order of gates, keys, values, receptances and the gate of the result."""
    d = neighbours(x, prefix, feat_size, HEADS) - x
    low = torch.tanh((x + d * attn.time_maa_x) @ attn.time_maa_w1).chunk(5, dim=-1)
    shares = (getattr(attn, f"time_maa_{part}") for part in "wkvrg")
    return [x + d * (share + z @ w) for share, z, w in zip(shares, low, attn.time_maa_w2, strict=True)]


def rwkv6(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """Products of gates between two tokens, without their own, and the bonus of each token."""
    xw, xk, _, xr, _ = dynamic_mixes(attn, x, prefix, feat_size)
    r, k = heads(attn.receptance(xr)), heads(attn.key(xk))
    low = torch.tanh(xw @ attn.time_decay_w1) @ attn.time_decay_w2
    decay = heads(-torch.exp(attn.time_decay + low))
    t, sums = torch.arange(x.shape[1]), decay.cumsum(2)
    ahead = (sums - decay)[:, :, :, None] - sums[:, :, None]
    between = torch.where((t[:, None] > t)[..., None], ahead, ahead.transpose(2, 3))
    weights = (r[:, :, :, None] * k[:, :, None] * between.clamp(max=0).exp()).sum(-1)
    own = (r * k * attn.time_faaaa[:, None]).sum(-1)
    return torch.where(t[:, None] == t, own[..., None], weights)


def mlstm_inputs(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> list[Tensor]:
    """Convolved tokens, the gate z, and queries, keys and values of `mlstm`, side by side."""
    a, z = attn.proj_up(x).chunk(2, dim=-1)
    backward = attn.direction == "backward"
    if isinstance(attn.conv, nn.Conv1d):
        sequence = a.flip(1) if backward else a
        s = attn.conv(F.pad(sequence.mT, (3, 0))).mT
        s = s.flip(1) if backward else s
    else:
        maps = a[:, prefix:].mT.unflatten(2, feat_size)
        maps = convolve(maps.flip(2, 3) if backward else maps, attn.conv, maps.shape[1])
        maps = maps.flip(2, 3) if backward else maps
        s = torch.cat([a[:, :prefix], maps.flatten(2).mT], 1)
    s = F.silu(s)
    layers = ((attn.q_proj, s), (attn.k_proj, s), (attn.v_proj, a))
    return [s, z, *(F.linear(given, torch.block_diag(*layer.weight), layer.bias) for layer, given in layers)]


def mlstm(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """The parallel form, with the sums of log gates between two tokens."""
    _, _, q, k, v = mlstm_inputs(attn, x, prefix, feat_size)
    qkv, cell = torch.cat([q, k, v], -1), attn.mlstm_cell
    i, f = cell.igate(qkv).mT, F.logsigmoid(cell.fgate(qkv).mT)
    ahead, matrices = torch.ones(x.shape[1], x.shape[1]).tril().bool(), []
    for direction, seen in (("forward", ahead), ("backward", ahead.mT)):
        if attn.direction in (direction, "both"):
            sums = f.cumsum(2) if direction == "forward" else f.flip(2).cumsum(2).flip(2)
            log = (sums[..., None] - sums[:, :, None] + i[:, :, None]).masked_fill(~seen, -torch.inf)
            m = log.amax(-1, keepdim=True)
            weights = heads(q) @ heads(k).mT / (q.shape[-1] // HEADS) ** 0.5 * torch.exp(log - m)
            matrices.append(weights / (torch.maximum(weights.sum(-1, keepdim=True).abs(), torch.exp(-m)) + 1e-6))
    return sum(matrices[1:], matrices[0])


def circulant(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """A matrix for each channel: the weight of the displacement from its row to its column, modulo the map."""
    (q, k, _), place = attn.qkv(x).mT[..., None].chunk(3, dim=1), torch.arange(feat_size[0] * feat_size[1])
    row, column = place // feat_size[1], place % feat_size[1]
    step = (row - row[:, None]) % feat_size[0] * feat_size[1] + (column - column[:, None]) % feat_size[1]
    products = (q[:, :, prefix:] * k[:, :, prefix:].mT).flatten(2)
    sums = products.new_zeros(*products.shape[:2], len(place)).index_add(2, step.flatten(), products)
    weights = (sums / len(place) ** 0.5).softmax(2)[:, :, step]
    return torch.cat([scores(q[:, :, :prefix], k).softmax(-1), F.pad(weights, (prefix, 0))], dim=2)


def ssm_tokens(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """The tokens of `ssm` after its convolution, which leaves prefix tokens out, and SiLU."""
    u = attn.in_proj(x)
    maps = convolve(u[:, prefix:].mT.unflatten(2, feat_size), attn.conv2d, u.shape[2])
    return F.silu(torch.cat([u[:, :prefix], maps.flatten(2).mT], 1))


def ssm(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """A matrix for each channel: products of decays along four orders of the tokens, and the share of a token."""
    u, rows = ssm_tokens(attn, x, prefix, feat_size), torch.arange(x.shape[1])
    columns = torch.cat([rows[:prefix], rows[prefix:].view(feat_size).mT.flatten()])
    matrix = torch.diag_embed(attn.Ds.view(4, -1).sum(0)[:, None].expand(-1, x.shape[1])).repeat(len(x), 1, 1, 1)
    for k, order in enumerate((rows, columns, rows.flip(0), columns.flip(0))):
        given = u[:, order] @ attn.x_proj_weight[k].mT
        delta = (1 + (given[..., :-2] @ attn.dt_projs_weight[k].mT + attn.dt_projs_bias[k]).exp()).log()
        sums = (-attn.A_logs.view(4, -1)[k].exp() * delta).cumsum(1).mT
        decays = (sums[..., None] - sums[:, :, None]).exp().tril()
        scanned = given[:, None, :, -1:] * decays * (delta * given[..., -2:-1]).mT[:, :, None]
        back = order.argsort()
        matrix = matrix + scanned[:, :, back][..., back]
    return matrix


def polaformer(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """A matrix for pairs of like signs and one for pairs of unlike signs, for each head."""
    q, k = (heads(part / attn.scale.exp().log1p()) for part in encoded(attn, x, prefix))
    exponent = 1 + 4 / (1 + (-attn.power).exp())
    q_plus, q_minus, k_plus, k_minus = (part.relu() ** exponent for part in (q, -q, k, -k))
    like, unlike = q_plus @ k_plus.mT + q_minus @ k_minus.mT, q_plus @ k_minus.mT + q_minus @ k_plus.mT
    both = torch.stack([like, unlike], dim=2).flatten(1, 2)
    return both / (both.sum(-1, keepdim=True) + 1e-6 * x.shape[1])


def is_kind(attn: Any, kind: str) -> bool:
    return isinstance(attn, ATTENTIONS[kind])


def values_of(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """The values `[B, H, M, D]`; tokens themselves where no layer projects to them."""
    if is_kind(attn, "gla"):
        return heads(attn.qkv_proj(in_conv(attn, x, prefix, feat_size))[..., -DIM:])
    if is_kind(attn, "gau"):
        return F.silu(attn.uv(x)).chunk(2, dim=-1)[1][:, None]
    if is_kind(attn, "spatial_reduction"):
        x = reduced(attn, x, prefix, feat_size)
    return heads(projected(attn, x, "v") if "v" in "".join(attn.projections.values()) else x, attn.num_heads)


def convolved(attn: Any, v: Tensor, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """The depthwise convolution of values `[B, H, P + N, D]`, zero at prefix tokens or where there is none."""
    layers = dict(attn.named_children())
    conv = next((layers[name] for name in ("local", "dwconv", "dwc", "lepe") if name in layers), None)
    if conv is None and not is_kind(attn, "inline"):
        return torch.zeros(())
    maps = v[:, :, prefix:].transpose(1, 2).flatten(2).mT.unflatten(2, feat_size)
    if conv is None:
        first, _, last = attn.residual
        m = F.gelu(F.conv1d(x.mean(1)[..., None], first.weight, first.bias, groups=HEADS))
        kernels = F.conv1d(m, last.weight, last.bias, groups=HEADS).reshape(*x.shape[::2], 1, 3, -1)
        padding = (1, kernels.shape[-1] // 2)
        maps = torch.stack([F.conv2d(a, b, padding=padding, groups=DIM) for a, b in zip(maps, kernels, strict=True)])
    else:
        maps = convolve(maps, conv, DIM)
    return F.pad(heads(maps.flatten(2).mT), (0, 0, prefix, 0))


def output_by(matrix: Tensor, attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """What attn returns for x if its attention is this matrix."""
    if is_kind(attn, "vssd"):
        gate, v, *_ = vssd_inputs(attn, x, prefix, feat_size)
        mixed = (matrix @ heads(v) + attn.D[:, None, None] * heads(v)).transpose(1, 2).flatten(2)
        return attn.out_proj(attn.norm(mixed) * gate)
    if attn.projections.get("gate") == "g":
        mixed = (matrix @ attn.qkv(x).chunk(3, dim=-1)[2].mT[..., None]).squeeze(3).mT
        return attn.proj(mixed * F.silu(attn.gate(x)))
    if hasattr(attn, "spatial_decay"):
        v = attn.value(shared(attn, x, prefix, feat_size, "v"))
        y = attn.out_norm((matrix @ v.mT[..., None]).squeeze(3).mT)
        return attn.output(attn.receptance(shared(attn, x, prefix, feat_size, "r")).sigmoid() * y)
    if hasattr(attn, "time_faaaa"):
        _, _, xv, _, xg = dynamic_mixes(attn, x, prefix, feat_size)
        mixed = (matrix @ heads(attn.value(xv))).transpose(1, 2).flatten(2)
        return attn.output(attn.ln_x(mixed.flatten(0, 1)).view_as(x) * F.silu(attn.gate(xg)))
    if hasattr(attn, "learnable_skip"):
        s, z, *_, v = mlstm_inputs(attn, x, prefix, feat_size)
        mixed, norm = (matrix @ heads(v)).transpose(1, 2), attn.mlstm_cell.outnorm
        bias = 0 if norm.bias is None else norm.bias
        y = F.layer_norm(mixed, mixed.shape[3:]).flatten(2) * (1 + norm.weight) + bias
        return attn.proj_down((y + attn.learnable_skip * s) * F.silu(z))
    if is_kind(attn, "ssm"):
        y = (matrix @ ssm_tokens(attn, x, prefix, feat_size).mT[..., None]).squeeze(3).mT
        return attn.out_proj(attn.out_norm(y))
    v = values_of(attn, x, prefix, feat_size)
    if matrix.shape[1] == 2 * HEADS:
        halves = v.unflatten(3, (2, -1)).transpose(2, 3).flatten(1, 2)
        mixed = (matrix @ halves).unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)
    else:
        mixed = matrix @ v
    if is_kind(attn, "longformer"):
        index = torch.tensor(global_tokens(attn, prefix, feat_size))
        of_global = matrix[:, :, index] @ heads(attn.kv_global(x).chunk(2, dim=-1)[1])
        mixed = mixed.index_copy(2, index, of_global)
    mixed = (mixed + convolved(attn, v, x, prefix, feat_size)).transpose(1, 2).flatten(2)
    if is_kind(attn, "gau"):
        mixed = mixed * F.silu(attn.uv(x)).chunk(2, dim=-1)[0]
    if is_kind(attn, "gla"):
        u = in_conv(attn, x, prefix, feat_size)
        scan, near = (
            (part / (part.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight).flatten(2)
            for whole, norm in ((mixed, attn.g_norm), (u, attn.l_norm))
            for part in [whole.unflatten(2, (HEADS, -1))]
        )
        share = attn.g_proj(u).sigmoid()
        mixed = attn.act(share * scan + (1 - share) * near)
    if "g" in "".join(attn.projections.values()):
        mixed = mixed * projected(attn, x, "g")
    return mixed if is_kind(attn, "mila") or is_kind(attn, "none") else attn.proj(mixed)


LOCAL = pattern(lambda y, x: (y.abs() <= 1) & (x.abs() <= 1))
ATROUS = pattern(lambda y, x: (y % 2 == 0) & (x % 2 == 0))
SPARSE = pattern(lambda y, x: (y.abs() <= 1) & (x.abs() <= 1) | (y % 2 == 0) & (x % 2 == 0))
GROWING = "N^2/r^2 + N^3/r^6"

CASES = [
    case("softmax", "contract masks", softmax, "N^2"),
    case("softmax_one", "contract masks", softmax, "N^2"),
    case("gaussian", "contract masks", gaussian, "N^2"),
    case("gaussian", "masks", gaussian, normalize=True),
    case("linear", "contract masks", linear, "N"),
    case("linear", "contract", linear, features="relu"),
    case("performer", "contract masks", performer, "N"),
    case("performer", "contract masks", performer, kernel="relu"),
    case("hedgehog", "contract masks", hedgehog, "N"),
    case("efficient", "contract masks", efficient, "N"),
    case("hydra", "contract masks", hydra, "N"),
    case("sima", "contract masks", sima, "N"),
    case("cosformer", "contract masks", cosformer, "N"),
    case("gau", "contract", gau, "N"),
    case("gau", "contract masks", gau, "N^2", form="quadratic"),
    case("gau", "contract masks", gau, chunk_size=8),
    case("vq", "contract", cost="N"),
    case("vq", "masks", vq, num_codes=5),
    case("none", "contract masks", cost="0"),
    case("reformer", "contract", cost="N log N"),
    case("reformer", "contract", chunk_size=16),
    case("bigbird", "contract", cost="N"),
    case("bigbird", "contract", block_size=8),
    case("spatial_reduction", "contract masks maps", spatial_reduction, "N^2/r^2"),
    case("spatial_reduction", "contract", spatial_reduction, "N", linear=True),
    case("linformer", "contract", linformer, "N"),
    case("synthesizer", "contract", synthesizer, "N^2"),
    case("synthesizer", "contract", synthesizer_random, scores="random"),
    case("soft", "contract masks", cost=GROWING),
    case("soft", formula=soft, newton_gradient="unrolled"),
    case("soft", formula=soft, inverse="cholesky"),
    case("soft", formula=soft, inverse="cholesky", sampling="first"),
    case("soft", formula=soft, inverse="cholesky", sampling="avg"),
    case("soft", "masks", local_kernel=0, sampling="avg"),
    case("soft", "masks", cost="N", num_bottleneck=4),
    case("soft", cost="N", max_bottleneck=7),
    case("soft_norm", "contract", cost=GROWING),
    case("soft_norm", formula=soft, newton_gradient="unrolled"),
    case("soft_norm", formula=soft, inverse="cholesky", ridge=0.01),
    case("soft_norm", "masks", cost="N", local_kernel=0, sampling="avg", num_bottleneck=4),
    case("soft_norm", "masks", sampling="avg"),
    case("soft_plus", "contract masks", cost=GROWING),
    case("soft_plus", formula=soft, newton_gradient="unrolled"),
    case("soft_plus", formula=soft, inverse="cholesky"),
    case("soft_plus", formula=soft, inverse="cholesky", sampling="avg"),
    case("soft_plus", "masks", local_kernel=0, sampling="avg"),
    case("nystrom", "contract masks", cost="N"),
    case("nystrom", formula=nystrom, inverse="exact", max_landmarks=(2, 1)),
    case("nystrom", "masks", local_kernel=0),
    case("nystrom", "masks", local_kernel=0, landmarks="segment", max_landmarks=(4,)),
    case("nystrom", "contract", cost=GROWING, local_kernel=0, landmarks="segment", max_landmarks=None),
    case("agent", "contract masks", agent, "N"),
    case("agent", "masks", max_agents=(4,)),
    case("agent", cost="N^2/r^2", max_agents=None),
    case("skyformer", "contract masks", skyformer, "N"),
    case("skyformer", cost=GROWING, max_landmarks=None),
    case("focused", "contract masks maps", focused, "N"),
    case("focused", "contract", power=8.0),
    case("flatten", formula=flatten),
    case("inline", "contract masks maps", inline, "N"),
    case("polaformer", "contract", polaformer, "N"),
    case("rala", "contract masks maps", rala, "N"),
    case("mala", "contract masks maps", mala, "N"),
    case("mila", "contract masks maps", mila, "N"),
    case("ttt", "contract maps", cost="N"),
    case("ttt", "contract masks", rope=True),
    case("ttt_glu", "contract masks maps", cost="N"),
    case("ttt_glu", "masks", qk_conv=False),
    case("linear", "contract masks maps", key_norm="instance", qk_conv=True),
    case("gaussian", "masks maps", key_norm="instance", qk_conv=True),
    case("soft", "masks", local_kernel=0, sampling="avg", key_norm="instance", qk_conv=True),
    case("wfm", "contract masks maps", cost="N"),
    case("vssd", "contract masks maps", vssd, "N"),
    case("vssd", formula=vssd, d_state=5),
    case("gla", "contract masks maps", gla, "N"),
    case("gla", "contract", gla, act=True),
    case("rwkv", "contract", rwkv, "N"),
    case("rwkv", formula=rwkv, out_norm=True),
    case("rwkv6", "contract masks maps", rwkv6, "N"),
    case("rwkv6", formula=rwkv6, mix_rank=3, decay_rank=5),
    case("mlstm", "contract masks maps", mlstm, "N"),
    case("mlstm", "contract", mlstm, direction="backward", bias=False),
    case("mlstm", "masks", mlstm, direction="backward"),
    case("mlstm", "contract", mlstm, direction="forward", conv1d=True),
    case("circulant", "contract masks maps", circulant, "N log N"),
    case("circulant", formula=circulant, qkv_bias=False),
    case("ssm", "contract masks maps", ssm, "N"),
    case("ssm", "contract", ssm, ssm_ratio=2),
    case("local", "contract masks", cost="N"),
    case("local", "maps", LOCAL, kernel_size=3),
    case("atrous", "contract", ATROUS, "N^2/k^2"),
    case("atrous", "contract masks maps", dilation=3),
    case("sparse", "contract", cost="N^1.5"),
    case("sparse", "masks maps", cost="N^2/k^2", dilation=3),
    case("sparse", formula=SPARSE, kernel_size=3, dilation=2),
    case("longformer", "contract", cost="N"),
    case("longformer", formula=longformer, kernel_size=3),
    case("longformer", formula=longformer, kernel_size=5, global_grid=(3, 1)),
]
# Types that another package or a plugin registers.
CASES += [
    case(kind, " ".join(["contract", *(["masks"] if cls.traits.mask_refusal is None else [])]), cost=cls.traits.cost)
    for kind, cls in ATTENTIONS.items()
    if kind not in {row.kind for row in CASES}
]
FORMULAS = [case for case in CASES if case.formula is not None]


def using(use: str) -> list[Case]:
    return [case for case in CASES if use in case.uses]
