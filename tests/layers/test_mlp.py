"""The feed-forward layer, fused on a CPU only for plain layers and inputs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from soft_vit.layers.mlp import Mlp
from soft_vit.ops.cpu import fused_linear, has_bfloat16

APPROXIMATIONS = ("none", "tanh")
needs_fusion = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="needs a build of torch with oneDNN"
)
needs_bfloat16 = pytest.mark.skipif(not has_bfloat16(), reason="needs a CPU with bf16")


@pytest.fixture
def calls(monkeypatch):
    """The argument gelu of each call of fused_linear."""
    made = []

    def spy(x, weight, bias, gelu=None):
        made.append(gelu)
        return fused_linear(x, weight, bias, gelu)

    monkeypatch.setattr("soft_vit.layers.mlp.fused_linear", spy)
    return made


def reference(mlp: Mlp, x: torch.Tensor) -> torch.Tensor:
    double = copy.deepcopy(mlp).double()
    hidden = F.gelu(F.linear(x.double(), double.fc1.weight, double.fc1.bias), approximate=mlp.act.approximate)
    return F.linear(hidden, double.fc2.weight, double.fc2.bias)


@needs_fusion
@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("shape", [(2, 63, 24), (1, 1, 24), (3, 0, 24)])
def test_fused_and_not_are_equally_exact(approximate, shape, calls):
    mlp = Mlp(24, 96, approximate).eval()
    x = 3 * torch.randn(shape)
    expected, plain = reference(mlp, x).detach(), mlp(x)
    assert not calls
    with torch.inference_mode():
        fused = mlp(x)
    assert calls == [approximate, None]
    assert fused.shape == plain.shape
    scale = expected.abs().amax() if expected.numel() else 1
    # A product of K terms in fp32, twice, and GELU's own rounding.
    torch.testing.assert_close(fused.double(), expected, rtol=0, atol=float(scale * 256 * torch.finfo().eps))


@needs_bfloat16
@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_is_at_least_as_exact(approximate, autocast, calls):
    mlp = Mlp(24, 96, approximate).eval()
    x = 3 * torch.randn(2, 63, 24)
    if not autocast:
        mlp, x = mlp.bfloat16(), x.bfloat16()
    expected = reference(mlp, x).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        plain = mlp(x)
        assert not calls
        with torch.inference_mode():
            fused = mlp(x)
    assert calls == [approximate, None]
    assert fused.dtype == plain.dtype == torch.bfloat16
    error, plain_error = ((y.double() - expected).norm() / expected.norm() for y in (fused, plain.detach()))
    # Both round the result to 8 bits; only one of them also rounds the input of GELU.
    assert error <= 1.1 * plain_error


def test_strided_tokens():
    mlp = Mlp(24, 48)
    x = torch.randn(2, 24, 35).mT
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), mlp(x.contiguous()))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("name", "replacement"), [("fc1", Doubled(24, 48)), ("fc2", Doubled(48, 24)), ("act", nn.ReLU())]
)
def test_replaced_layers_are_called_without_gradients(name, replacement, calls):
    mlp, x = Mlp(24, 48).eval(), torch.randn(2, 9, 24)
    setattr(mlp, name, replacement)
    expected = mlp(x)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), expected)
    assert len(calls) == (0 if name == "act" else 1) + (name == "act")


def test_flop_counters_see_all_operations(calls):
    mlp = Mlp(24, 48)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mlp(torch.randn(2, 9, 24))
    assert counter.get_total_flops() == 2 * 2 * 18 * 24 * 48
    assert not calls


def test_other_types_devices_and_transforms(calls):
    mlp = Mlp(8, 16).requires_grad_(False)
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        copy.deepcopy(mlp).double()(x.double())
        copy.deepcopy(mlp).to("meta")(x.to("meta"))
        with torch.autocast("cpu", dtype=torch.float16):
            assert mlp(x).dtype == torch.float16
        each = torch.func.vmap(lambda one: mlp(one))(x)
        assert not calls
        torch.testing.assert_close(each, mlp(x))


def test_tangents_are_not_lost():
    mlp = Mlp(24, 48).eval()
    x, direction = torch.randn(2, 9, 24), torch.randn(2, 9, 24)
    with torch.no_grad(), forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(mlp(forward_ad.make_dual(x, direction))).tangent
    assert tangent is not None
    step = 1e-3
    with torch.no_grad():
        difference = (mlp(x + step * direction) - mlp(x - step * direction)) / (2 * step)
    torch.testing.assert_close(tangent, difference, rtol=1e-2, atol=1e-2)
