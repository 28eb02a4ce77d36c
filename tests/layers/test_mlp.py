"""The feed-forward layer, fused on a CPU only for plain layers and inputs."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from soft_vit.layers.mlp import Mlp
from soft_vit.layers.plain import Linear, conv_norm_act
from soft_vit.ops.cpu import fused_linear, has_bfloat16

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs torch with oneDNN")
needs_bfloat16 = pytest.mark.skipif(not has_bfloat16(), reason="needs a CPU with bf16")


@pytest.fixture
def calls(monkeypatch):
    """The argument gelu of each call of fused_linear."""
    made = []

    def spy(x, weight, bias, gelu=None):
        made.append(gelu)
        return fused_linear(x, weight, bias, gelu)

    monkeypatch.setattr("soft_vit.layers.plain.fused_linear", spy)
    return made


PRECISIONS = [
    (torch.float32, False),
    pytest.param(torch.bfloat16, False, marks=needs_bfloat16),
    pytest.param(torch.float32, True, marks=needs_bfloat16),
]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shape", [(2, 63, 24), (1, 1, 24), (3, 0, 24)])
@pytest.mark.parametrize(("dtype", "autocast"), PRECISIONS)
def test_fused_is_as_exact_as_separate_operations(approximate, shape, dtype, autocast, calls):
    mlp = Mlp(24, 96, act_layer=partial(nn.GELU, approximate), dtype=dtype).eval()
    x = (3 * torch.randn(shape)).to(dtype)
    exact = copy.deepcopy(mlp).double()
    hidden = F.gelu(F.linear(x.double(), exact.fc1.weight, exact.fc1.bias), approximate=approximate)
    expected = F.linear(hidden, exact.fc2.weight, exact.fc2.bias).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        plain = mlp(x)
        assert not calls
        with torch.inference_mode():
            fused = mlp(x)
    assert calls == [approximate, None]
    assert (fused.shape, fused.dtype) == (plain.shape, plain.dtype)
    error, plain_error = ((y.double() - expected).norm() for y in (fused, plain.detach()))
    # Products of K terms in fp32, and GELU's own rounding. In bf16 only one of them also rounds the input of GELU.
    assert error <= 1.1 * plain_error + 256 * torch.finfo(torch.float32).eps * expected.norm()


class Doubled(Linear):
    def forward(self, x):
        return 2 * super().forward(x)


REPLACED = [("fc1", Doubled(24, 48)), ("fc2", Doubled(48, 24)), ("act", nn.ReLU())]


@pytest.mark.parametrize(("name", "replacement"), REPLACED)
def test_replaced_layers_are_called_without_gradients(name, replacement, calls):
    mlp, x = Mlp(24, 48).eval(), torch.randn(2, 9, 24)
    setattr(mlp, name, replacement)
    expected = mlp(x)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), expected)
    assert len(calls) == 1 + (name == "act")


def test_only_plain_tensors_of_eager_operations_are_fused(calls):
    mlp, x = Mlp(8, 16).requires_grad_(False), torch.randn(2, 5, 8)
    with torch.no_grad():
        copy.deepcopy(mlp).double()(x.double())
        copy.deepcopy(mlp).to("meta")(x.to("meta"))
        with torch.autocast("cpu", dtype=torch.float16):
            assert mlp(x).dtype == torch.float16
        with FlopCounterMode(display=False) as counter:
            mlp(x)
        assert counter.get_total_flops() == 2 * 2 * 10 * 8 * 16
        each = torch.func.vmap(lambda one: mlp(one))(x)
        assert not calls
        torch.testing.assert_close(each, mlp(x))


def test_tangents_are_not_lost():
    mlp = Mlp(24, 48).eval().requires_grad_(False)
    x, direction = torch.randn(2, 9, 24), torch.randn(2, 9, 24)
    expected = torch.autograd.functional.jvp(mlp, x, direction)[1]
    with torch.no_grad(), forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(mlp(forward_ad.make_dual(x, direction))).tangent
    torch.testing.assert_close(tangent, expected)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_large_hidden_maps_are_computed_in_parts(approximate, calls, monkeypatch):
    mlp, x = Mlp(24, 96, act_layer=partial(nn.GELU, approximate)).eval(), 3 * torch.randn(2, 35, 24)
    with torch.inference_mode():
        expected = mlp(x)
        # Nine tokens of 96 channels.
        monkeypatch.setattr("soft_vit.layers.mlp.HIDDEN_SIZE", 900)
        monkeypatch.setattr("soft_vit.ops.cpu.GELU_CHUNK", 250)
        torch.testing.assert_close(mlp(x), expected)
    assert calls == [approximate, None] * 9
    seen = []
    mlp.act.register_forward_hook(lambda act, given, y: seen.append(y.shape))
    with torch.inference_mode():
        mlp(x)
    assert seen == [(2, 35, 96)]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("act", [None, nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU()], ids=str)
@pytest.mark.parametrize(("norm", "stride"), [(nn.BatchNorm2d(6), 2), (nn.Identity(), 1), (None, 1)], ids=str)
def test_convolutions_in_one_pass_equal_their_layers_in_float64(norm, stride, act, grad):
    conv, x = nn.Conv2d(6, 6, 3, stride, 1, groups=6).eval(), torch.randn(2, 6, 9, 7)
    if isinstance(norm, nn.BatchNorm2d):
        nn.init.uniform_(norm.eval().running_var, 0.5, 2)
        nn.init.normal_(norm.running_mean)
    x[0, 0, 4, 4] = torch.nan
    apply = act or nn.Identity()
    wide_conv, wide_norm = copy.deepcopy(conv).double(), copy.deepcopy(norm or nn.Identity()).double()
    expected = apply(wide_norm(wide_conv(x.double())))
    with torch.set_grad_enabled(grad):
        y = conv_norm_act(x, conv, norm, act)
    torch.testing.assert_close(y, expected.float(), rtol=1e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("options", [{"padding": 2, "dilation": 2}, {"padding": 1, "padding_mode": "reflect"}], ids=str)
def test_other_convolutions_are_called(options):
    conv, x = nn.Conv2d(6, 6, 3, groups=6, **options).eval(), torch.randn(2, 6, 9, 7)
    with torch.no_grad():
        assert torch.equal(conv_norm_act(x, conv), conv(x))
