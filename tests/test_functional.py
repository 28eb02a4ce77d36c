"""The operator on queries, keys and values, and its form for packed sequences."""

import pytest
import torch
import torch.nn.functional as F
from attention_cases import kernel, projected, relative_error, rows_of_one, scores, tokens
from torch import Tensor

import soft_vit
from soft_vit.functional import CROSS_KINDS, FUNCTIONAL_KINDS, PACKED_KINDS
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.attention.base import merge_heads, split_heads

DIM, HEADS = 12, 3
OPTIONS = {
    "linear": [{}, {"features": "relu"}],
    "focused": [{}, {"power": 2.0}],
    "performer": [{}, {"kernel": "relu"}],
    "nystrom": [{}, {"sr_ratio": 2, "max_landmarks": (2, 2), "inverse": "exact"}],
    "skyformer": [{}, {"sr_ratio": 2, "max_landmarks": 2, "ridge": 0.1}],
    "soft": [{}, {"sr_ratio": 2, "max_bottleneck": 2, "inverse": "cholesky", "ridge": 0.1, "normalize": True}],
}
CASES = [(kind, options) for kind in FUNCTIONAL_KINDS for options in OPTIONS.get(kind, [{}])]
# Options of modules, that the operator leaves out or names otherwise: without convolutions, tokens by averages.
MODULE_OPTIONS = {"nystrom": {"local_kernel": 0}, "soft": {"local_kernel": 0, "sampling": "avg", "max_bottleneck": 7}}
cases = pytest.mark.parametrize(("kind", "options"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x))


def qkv(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, grad: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_(grad) for shape in shapes]


@cases
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_module_between_its_projections(kind, options, masked):
    given = {**MODULE_OPTIONS.get(kind, {}), **options}
    name = "soft_norm" if given.pop("normalize", False) else kind
    given |= {"newton_start": "rowsum"} if name == "soft_norm" else {}
    attn = ATTENTIONS[name](DIM, HEADS, feat_size=(19,), dtype=torch.float64, **given).eval()
    for conv in (module for module in attn.modules() if isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d)):
        torch.nn.init.zeros_(conv.weight)
        torch.nn.init.zeros_(conv.bias)
    x = tokens(2, 19)
    mask = torch.arange(19) < torch.tensor([[19], [12]]) if masked else None
    parts = ["q", "q" if attn.traits.key_is_query else "k", "v"]
    q, k, v = (split_heads(projected(attn, x, part), attn.num_heads) for part in parts)
    if attn.traits.key_is_query:
        k = q
    if kind in ("hydra", "circulant"):
        q, k, v = (part.mT.unflatten(1, (HEADS, -1))[..., 0, :].mT for part in (q, k, v))
    if kind == "performer":
        options = {**options, "projection": attn.projection}
    y = soft_vit.attention(q, q if k is q else k, v, kind, key_padding_mask=mask, **options)
    expected = attn(x, (19,), key_padding_mask=mask)
    if kind == "circulant":
        y = y * split_heads(F.silu(attn.gate(x)), HEADS)
    found = attn.proj(merge_heads(y))
    counts = slice(None) if mask is None else mask
    assert relative_error(found[counts], expected[counts]) < 1e-12


def matrix(kind: str, q: Tensor, k: Tensor, projection: Tensor) -> Tensor:
    """The dense matrix `[B, H, N, M]` of a kind with keys of its own."""
    distance = kernel(q * q.shape[-1] ** -0.25, k * k.shape[-1] ** -0.25)
    if kind in ("softmax", "softmax_one"):
        weights = scores(q, k).exp()
        return weights / (weights.sum(-1, keepdim=True) + float(kind == "softmax_one"))
    if kind == "performer":
        q, k = (x * x.shape[-1] ** -0.25 for x in (q, k))
        q, k = ((x @ projection.mT - x.square().sum(-1, keepdim=True) / 2).exp() for x in (q, k))
        return rows_of_one(q @ k.mT)
    if kind == "focused":
        q, k = ((x.relu() + 1e-6) for x in (q, k))
        q, k = (x**3 * x.norm(dim=-1, keepdim=True) / (x**3).norm(dim=-1, keepdim=True) for x in (q, k))
        return rows_of_one(q @ k.mT)
    return {
        "gaussian": lambda: distance,
        "linear": lambda: rows_of_one((F.elu(q) + 1) @ (F.elu(k) + 1).mT),
        "efficient": lambda: q.softmax(-1) @ k.softmax(-2).mT,
    }[kind]()


@pytest.mark.parametrize("kind", CROSS_KINDS)
def test_keys_of_other_tokens(kind):
    q, k, v, projection = qkv((2, 3, 7, 4), (2, 3, 11, 4), (2, 3, 11, 5), (6, 4), grad=True)
    if kind == "hydra":
        v = qkv((2, 3, 11, 4), grad=True)[0]
        lengths = [x.square().sum((1, 3), keepdim=True).sqrt() for x in (q, k)]
        expected = q / lengths[0] * (k / lengths[1] * v).sum(2, keepdim=True)
    elif kind == "inline":
        expected = (scores(q, k) - scores(q, k).mean(-1, keepdim=True)) / 11 @ v + v.mean(2, keepdim=True)
    else:
        expected = matrix(kind, q, k, projection) @ v
    options = {"projection": projection} if kind == "performer" else {}
    found = soft_vit.attention(q, k, v, kind, **options)
    # What is added to features of focused attention, so that zeros have a direction, is 1e-6 of the formula too.
    assert relative_error(found, expected) < 1e-12
    for gradients in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (found, expected)), strict=True):
        assert relative_error(*gradients) < 1e-11
    mask = torch.arange(11) < torch.tensor([[11], [8]])
    masked = soft_vit.attention(q, k, v, kind, key_padding_mask=mask, **options)
    alone = soft_vit.attention(q[1:], k[1:, :, :8], v[1:, :, :8], kind, **options)
    assert relative_error(masked[1:], alone) < 1e-12


@pytest.mark.parametrize("kind", FUNCTIONAL_KINDS)
def test_padding_is_left_out_wherever_it_is_and_whatever_it_holds(kind):
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, [0, 1, 6, 10]] = False
    qkv = torch.randn(3, 2, HEADS, 11, 4, dtype=torch.float64)
    alone = soft_vit.attention(*qkv[:, 1:, :, mask[1]], kind)

    def attend(qkv: Tensor, mask: Tensor) -> Tensor:
        return soft_vit.attention(*qkv, kind, key_padding_mask=mask)

    padded = qkv.masked_fill(~mask[:, None, :, None], float("nan"))
    for found in (attend(padded, mask), torch.func.vmap(attend, (1, 0))(padded[:, :, None], mask[:, None])[:, 0]):
        assert relative_error(found[1:, :, mask[1]], alone) < 1e-10


@pytest.mark.parametrize("kind", FUNCTIONAL_KINDS)
def test_context(kind):
    attn = ATTENTIONS[kind](DIM, HEADS, feat_size=(7,), dtype=torch.float64).eval()
    x, context = tokens(2, 7), tokens(2, 11, seed=2)
    mask = torch.arange(11) < torch.tensor([[11], [8]])
    if kind not in CROSS_KINDS:
        with pytest.raises(ValueError, match="context"):
            attn(x, (7,), context=context)
        return
    padded = context.masked_fill(~mask[..., None], float("nan"))
    found = attn(x, (7,), key_padding_mask=mask, context=padded)
    assert relative_error(found[1:], attn(x[1:], (7,), context=context[1:, :8])) < 1e-12
    if kind == "softmax":
        q, k, v = attn.project(x)[0], *attn.project(context)[1:]
        expected = attn.proj(merge_heads(F.scaled_dot_product_attention(q, k, v, mask[:, None, None])))
        assert relative_error(found, expected) < 1e-12


def test_soft_gathers_values_by_the_kernel_of_other_keys():
    q, k, v = qkv(*[(2, 3, 8, 4)] * 3)
    landmarks = (q * 4**-0.25).unflatten(2, (4, 2)).mean(3)
    a = kernel(landmarks, landmarks) + 0.1 * torch.eye(4, dtype=q.dtype)
    expected = kernel(q * 4**-0.25, landmarks) @ torch.linalg.solve(a, kernel(landmarks, k * 4**-0.25) @ v)
    found = soft_vit.attention(q, k, v, "soft", sr_ratio=2, inverse="cholesky", ridge=0.1)
    assert relative_error(found, expected) < 1e-12
    same = soft_vit.attention(q, q.clone(), v, "soft", sr_ratio=2)
    assert relative_error(same, soft_vit.attention(q, q, v, "soft", sr_ratio=2)) < 1e-10


@pytest.mark.parametrize("kind", FUNCTIONAL_KINDS)
def test_scale(kind):
    q, k, v = qkv(*[(2, 3, 9, 4)] * 3)
    if kind in ("linear", "focused", "efficient", "hydra", "circulant", "sima", "cosformer"):
        with pytest.raises(ValueError, match="scale"):
            soft_vit.attention(q, k, v, kind, scale=0.5)
        return
    default = soft_vit.attention(q, k, v, kind)
    assert relative_error(soft_vit.attention(q, k, v, kind, scale=0.5), default) < 1e-12
    assert relative_error(soft_vit.attention(q, k, v, kind, scale=0.1), default) > 1e-3
    if kind == "softmax":
        expected = F.scaled_dot_product_attention(q, k, v, scale=0.1)
        assert relative_error(soft_vit.attention(q, k, v, kind, scale=0.1), expected) < 1e-12
    if kind == "gaussian":
        expected = kernel(q * 0.1**0.5, k * 0.1**0.5) @ v
        assert relative_error(soft_vit.attention(q, k, v, kind, scale=0.1), expected) < 1e-12


PACKED = [case for case in CASES if case[0] in PACKED_KINDS]


@pytest.mark.parametrize(("kind", "options"), PACKED, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_packed_equals_each_sequence_alone(kind, options):
    lengths = [1, 70, 64, 5, 129]
    q, k, v = qkv(*[(sum(lengths), 3, 4)] * 3, grad=True)
    boundaries = torch.tensor([0, *lengths]).cumsum(0).int()
    found = soft_vit.varlen_attention(q, k, v, boundaries, kind, **options)
    alone = (
        soft_vit.attention(*(x.transpose(0, 1)[None] for x in part), kind, **options)[0].transpose(0, 1)
        for part in zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
    )
    expected = torch.cat(list(alone))
    assert relative_error(found, expected) < 1e-12
    weights = qkv(found.shape)[0]
    for pair in zip(*(torch.autograd.grad((y * weights).sum(), (q, k, v)) for y in (found, expected)), strict=True):
        assert relative_error(*pair) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", PACKED_KINDS)
def test_packed_in_low_precision(kind, dtype):
    q, k, v = qkv(*[(30, 3, 4)] * 3)
    boundaries = torch.tensor([0, 12, 30])
    low = soft_vit.varlen_attention(*(x.to(dtype) for x in (q, k, v)), boundaries, kind)
    assert low.dtype == dtype
    expected = soft_vit.varlen_attention(q, k, v, boundaries, kind)
    assert relative_error(low.double(), expected) < 40 * torch.finfo(dtype).eps


Q, V, T, BOUNDS = torch.zeros(2, 3, 8, 4), torch.zeros(2, 3, 8, 5), torch.zeros(8, 3, 4), torch.tensor([0, 3, 8])


MISTAKES = {
    "kind": lambda: soft_vit.attention(Q, Q, V, "softmx"),
    "Options": lambda: soft_vit.attention(Q, Q, V, "linear", power=2),
    r"\[B, H, N, D\]": lambda: soft_vit.attention(Q[0], Q[0], V[0]),
    "one head, token": lambda: soft_vit.attention(Q, Q[:, :, :0], V[:, :, :0], "performer"),
    "projection": lambda: soft_vit.attention(Q, Q, V, "performer", projection=torch.zeros(8, 5)),
    "(2, 1, 8, 4)": lambda: soft_vit.attention(Q, Q[:, :1], V[:, :1]),
    "one sequence": lambda: soft_vit.attention(Q, Q[:, :, :7], V[:, :, :7], "sima"),
    "shape (2, 8)": lambda: soft_vit.attention(Q, Q, V, key_padding_mask=torch.ones(8, 8).bool()),
    "at least one": lambda: soft_vit.attention(Q, Q, V, key_padding_mask=torch.zeros(2, 8).bool()),
    "packed": lambda: soft_vit.varlen_attention(T, T, T, BOUNDS, "nystrom"),
    r"\[T, H, D\]": lambda: soft_vit.varlen_attention(T[None], T[None], T[None], BOUNDS),
    "cu_seqlens": lambda: soft_vit.varlen_attention(T, T, T, torch.tensor([0, 3, 7])),
    "increase": lambda: soft_vit.varlen_attention(T, T, T, torch.tensor([0, 3, 3, 8])),
    "from 0 to 8": lambda: ATTENTIONS["linear"](4, 2, feat_size=(8,)).packed(T[:, 0], torch.tensor([2, 5])),
}.items()


@pytest.mark.parametrize(("named", "call"), MISTAKES)
def test_mistakes(named, call):
    with pytest.raises(ValueError, match=named.replace("(", r"\(").replace(")", r"\)")):
        call()


@pytest.mark.parametrize("kind", FUNCTIONAL_KINDS)
def test_batches_without_images(kind):
    q, k, v = qkv(*[(0, 3, 8, 4)] * 3)
    for mask in (None, torch.ones(0, 8, dtype=torch.bool)):
        assert soft_vit.attention(q, k, v, kind, key_padding_mask=mask).shape == v.shape


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["soft", "linear", "performer", "nystrom"])
def test_one_graph(kind):
    q, k, v = qkv(*[(2, 3, 9, 4)] * 3)
    compiled = torch.compile(soft_vit.attention, backend="eager", fullgraph=True)
    for length in (9, 8, 7):
        given = [x[:, :, :length] for x in (q, k, v)]
        assert relative_error(compiled(*given, kind), soft_vit.attention(*given, kind)) < 1e-12
