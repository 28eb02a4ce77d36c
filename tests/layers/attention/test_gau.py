"""The gated attention unit against its formula over all pairs of tokens."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.layers.attention.gau import GatedAttentionUnit
from soft_vit.ops.layout import Layout

# Float64 on both sides, sums of at most some hundred terms in another order: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12


def make(**options) -> GatedAttentionUnit:
    torch.manual_seed(0)
    attn = GatedAttentionUnit(24, 3, feat_size=(7, 9), dtype=torch.float64, **options)
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attn


def dense(attn: GatedAttentionUnit, x: Tensor) -> Tensor:
    """The definition, with the linear form's matrix written out."""
    N, S = x.shape[1], attn.z.out_features
    u, v = F.silu(attn.uv(x)).tensor_split(2, dim=-1)
    z = F.silu(attn.z(x))
    q, k, *linear = (z * scale + offset for scale, offset in zip(attn.scale, attn.offset, strict=True))
    squares = (q @ k.mT / S**0.5).clamp(min=0) ** 2
    if attn.form == "quadratic":
        matrix = squares / N
    else:
        chunk = torch.arange(N) // attn.chunk_size
        together = (chunk[:, None] == chunk).double()
        matrix = together * squares / together.sum(-1, keepdim=True) + linear[0] @ linear[1].mT / N
    return attn.proj(u * (matrix @ v))


@pytest.mark.parametrize("feat_size", [(7, 9), (15, 13), (8, 8), (1, 1)])
@pytest.mark.parametrize(
    "options",
    [
        {"form": "quadratic"},
        {"form": "linear", "chunk_size": 16},
        {"form": "linear", "chunk_size": 1},
        {"form": "linear", "chunk_size": 1000},
    ],
)
def test_equals_its_formula(options: dict, feat_size: tuple[int, int]) -> None:
    attn = make(**options)
    shape = (2, feat_size[0] * feat_size[1], 24)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    y, expected = attn(x, feat_size), dense(attn, x)
    assert (y - expected).norm() <= TOLERANCE * expected.norm()
    inputs = {"x": x, **dict(attn.named_parameters())}
    grads, expected_grads = (torch.autograd.grad(out.square().sum(), inputs.values()) for out in (y, expected))
    for name, grad, expected_grad in zip(inputs, grads, expected_grads, strict=True):
        assert (grad - expected_grad).norm() <= TOLERANCE * expected_grad.norm(), name


def test_equal_tokens_give_the_same_on_any_map() -> None:
    token = torch.randn(1, 1, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for form in ("quadratic", "linear"):
        attn = make(form=form, chunk_size=16)
        small, large = (attn(token.expand(1, h * w, 24), (h, w))[:, :1] for h, w in ((2, 3), (15, 13)))
        assert (large - small).norm() <= TOLERANCE * small.norm()


def test_an_average_that_half_precision_holds_needs_no_sum_that_it_does_not() -> None:
    """All tokens alike: the average of their products is 64, and the sum beyond the 65504 of fp16."""
    token = torch.full((1, 1, 8), 8.0, dtype=torch.float16).expand(1, 2000, 8)
    attn = GatedAttentionUnit(4, 1)
    with torch.no_grad():
        # The linear part alone.
        attn.scale.copy_(torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(8, 1).mT)
        x = attn.attend(token, token, Layout((2000, 1)), gate=torch.ones_like(token))
    one, eight = F.silu(torch.tensor([1.0, 8.0]))
    torch.testing.assert_close(x, (one * 8 * eight**3).to(x.dtype).expand_as(x))


@pytest.mark.parametrize("form", ["quadratic", "linear"])
def test_padding_of_any_value_is_left_out(form: str) -> None:
    attn = make(form=form, chunk_size=16)
    x = torch.randn(2, 63, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(63) < torch.tensor([[63], [41]])
    y = attn(x, (7, 9), key_padding_mask=mask)
    padded = attn(x.masked_fill(~mask[..., None], float("nan")), (7, 9), key_padding_mask=mask)
    torch.testing.assert_close(padded[mask], y[mask], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("bias", [True, False])
def test_training_on_many_tokens_projects_to_z_once_more(bias: bool) -> None:
    """Against a subclass of nn.Linear, whose results are kept."""

    class Kept(torch.nn.Linear):
        pass

    attn = make(qkv_bias=bias)
    x = torch.randn(2, 2100, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    inputs = {"x": x, **dict(attn.named_parameters())}
    grads = torch.autograd.grad(attn(x, (42, 50)).square().sum(), inputs.values())
    attn.z.__class__ = Kept
    expected = torch.autograd.grad(attn(x, (42, 50)).square().sum(), inputs.values())
    for name, grad, expected_grad in zip(inputs, grads, expected, strict=True):
        assert (grad - expected_grad).norm() <= TOLERANCE * expected_grad.norm(), name
