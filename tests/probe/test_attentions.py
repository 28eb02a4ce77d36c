"""Attentions that are switched off, and what `probe` measures: shares and residuals of Newton's iteration."""

import pytest
import timm
import torch
from torch import nn

from soft_vit.layers import ATTENTIONS, attention_class
from soft_vit.layers.attention.base import split_heads
from soft_vit.ops import newton_step_size, self_gaussian_kernel
from soft_vit.ops.layout import Layout
from soft_vit.ops.soft.options import add_ridge
from soft_vit.probe.attentions import replaced_attend, switched_off
from soft_vit.probe.health import probe


def make(kind: str, **options):
    torch.manual_seed(0)
    return attention_class(kind)(32, 2, feat_size=(6, 8), sr_ratio=2, **options).eval()


class Alone(nn.Module):
    """A model of one attention, on tokens."""

    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.attn = attn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attn(x, (6, 8))


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_switched_off(kind):
    """Nothing of far tokens is left: each output depends on its own place and on what a convolution reaches."""
    attn, x = make(kind), torch.randn(2, 48, 32)
    before = attn(x, (6, 8))
    with switched_off(attn), torch.no_grad():
        without = attn(x, (6, 8))
        far = x.clone()
        far[:, -1] += 1
        if kind != "inline":
            # The kernels of its convolution depend on the mean of all tokens.
            assert torch.equal(attn(far, (6, 8))[:, 0], without[:, 0])
    assert torch.equal(attn(x, (6, 8)), before)
    assert "attend" not in vars(attn)
    assert torch.equal(before, without) == (kind == "none")


def test_share_with_a_local_branch():
    """By hand: the output is linear in what attention and convolution add."""
    attn, x = make("soft").double(), torch.randn(2, 48, 32, dtype=torch.float64)
    with torch.no_grad():
        whole = attn(x, (6, 8))
        with replaced_attend(attn, lambda q, bottleneck, v, residual=None, mask=None: residual):
            local = attn(x, (6, 8))
    found = probe(Alone(attn), x, {"attn": lambda found, matrix: None})["attn"]
    assert found.share == pytest.approx(float((whole - local).norm() / whole.norm()), rel=1e-6)
    assert found.rest == pytest.approx(float(local.norm() / whole.norm()), rel=1e-6)


@pytest.mark.parametrize("kind", ["soft", "soft_norm"])
def test_residual_is_that_of_the_kernels(kind):
    """By eigenvalues, in float64, after few steps so that something is left."""
    attn, x = make(kind, newton_iters=4).double(), torch.randn(3, 48, 32, dtype=torch.float64)
    with torch.no_grad():
        q = nn.functional.linear(x, attn.q.weight, attn.q.bias) / attn.head_dim**0.25
        a = self_gaussian_kernel(attn.sample_bottleneck(split_heads(q, attn.num_heads), Layout((6, 8))))
    ridge = attn.options.ridge
    alpha = newton_step_size(a, ridge, attn.options.newton_start)[..., 0]
    left = (1 - alpha * torch.linalg.eigvalsh(add_ridge(a, ridge)).square()) ** 2**4
    expected = left.square().mean(-1).sqrt().mean().item()
    for visitors in ({}, {"attn": lambda found, matrix: None}):
        assert probe(Alone(attn), x, visitors)["attn"].newton_residual == pytest.approx(expected, rel=1e-9)
    assert expected > 1e-3
    for other in (make(kind, inverse="cholesky"), make("linformer")):
        assert probe(Alone(other), x.float())["attn"].newton_residual is None


def test_measuring_leaves_the_model_as_it_was():
    model = timm.create_model("soft_pico", img_size=64, depths=(1, 1, 1, 1), sampling="random", drop_path_rate=0.5)
    model.stages[0].eval()
    images = torch.randn(2, 3, 64, 64)
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    assert probe(model, images)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_measuring_does_not_call_what_may_be_compiled():
    """A compiled form ignores hooks, or keeps them for ever."""

    class Compiled(Alone):
        def __call__(self, *args: object) -> None:
            raise AssertionError("the compiled form")

    assert list(probe(Compiled(make("soft")), torch.randn(2, 48, 32))) == ["attn"]
