"""What attentions of a model do: health, spectra, rows, and what stays untouched."""

import numpy as np
import pytest
import timm
import torch
from torch import nn

from soft_vit.layers import ATTENTIONS, attention_class
from soft_vit.layers.attention.base import split_heads
from soft_vit.ops import newton_step_size, self_gaussian_kernel
from soft_vit.ops.layout import Layout
from soft_vit.ops.soft.options import add_ridge
from soft_vit.probe.attentions import attentions, replaced_attend, switched_off
from soft_vit.probe.health import accuracy, effective_rank, health_table, measure_accuracies, measure_health, probe
from soft_vit.probe.load import load_pyramid
from soft_vit.probe.matrix import watch_attention
from soft_vit.probe.spectrum import cumulative_singular_values, measure_spectrum
from soft_vit.probe.view import attention_row

# Attentions that are switched off, and what `probe` measures: shares and residuals of Newton's iteration.


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
    nn.init.constant_(attn.proj.weight, torch.nan)
    assert not probe(Alone(attn), x)["attn"].is_dead


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


# Health of attentions: rank, row sums, accuracy without a layer.


@pytest.mark.parametrize(("values", "rank"), [([1, 1, 1], 3), ([5, 0, 0], 1), ([0, 0, 0], 0), ([3, 1, 0], 4 / 3**0.75)])
def test_effective_rank(values, rank):
    left, right = (torch.linalg.qr(torch.randn(n, 3, dtype=torch.float64)).Q for n in (7, 5))
    matrix = left * torch.tensor(values, dtype=torch.float64) @ right.T
    assert effective_rank(matrix).item() == pytest.approx(rank, rel=1e-6)


HEALTHY = [("soft_plus_pico", {"depths": (1, 1, 1, 1)}), ("linear_vit_tiny_patch16", {"depth": 2})]


@pytest.mark.parametrize(("name", "options"), HEALTHY)
def test_health_of_models(name, options):
    model = timm.create_model(name, num_classes=3, img_size=64, **options).eval()
    images = torch.randn(4, 3, 64, 64)
    health = measure_health(model, list(images[:2]))
    for layer in health.values():
        assert layer.attention in name
        assert 1 <= layer.rank <= layer.num_tokens
        # Both kinds divide by their row sums.
        assert layer.row_sum == pytest.approx(1, abs=0.05)
        assert (layer.newton_residual is None) == (layer.attention == "linear")
    batches = [(images, model(images).argmax(-1))]
    found = measure_accuracies(model, batches, health)
    assert found["none"] == accuracy(model, batches) == 1
    assert 0 <= found["all"] <= 1
    assert "dead" not in found
    assert all(0 <= layer.accuracy_off <= 1 for layer in health.values())
    assert health_table(health).count("\n") == 1 + len(health)


def test_dead_attentions_are_switched_off_together():
    model = timm.create_model("softmax_pyramid_pico", num_classes=100, img_size=64, depths=(1, 1, 1, 1)).eval()
    layers, images = attentions(model), torch.randn(16, 3, 64, 64)
    for attn in layers.values():
        torch.nn.init.normal_(attn.proj.weight)
    health = measure_health(model, list(images[:1]))
    dead = list(layers)[:2]
    for name in dead:
        health[name].share = 5e-4
    with switched_off(*map(layers.get, dead)):
        batches = [(images, model(images).argmax(-1))]
    found = measure_accuracies(model, batches, health)
    assert found["dead"] == 1
    assert max(found["none"], found["all"], *(layer.accuracy_off for layer in health.values())) < 1


def test_a_model_without_attention_is_refused():
    with pytest.raises(ValueError, match="attention"):
        measure_health(torch.nn.Linear(2, 2), [torch.zeros(2)])


# Spectra that are known beforehand, and those of a model.


# Float32 singular values of matrices with at most 64 rows, relative to the largest: 64 roundings of 1.2e-7.
TOLERANCE = 1e-5


def orthogonal(size: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(size, size))[0]


def test_known_spectra():
    line = torch.arange(1, 64, dtype=torch.float64) / 63
    ones = torch.ones(63, dtype=torch.float64)
    cases = [(torch.eye(63), line), (3 * orthogonal(63), line), (torch.randn(63, 1) @ torch.randn(1, 63), ones)]
    # Fewer keys than tokens, and more.
    matrices = torch.stack([orthogonal(7)[:, :4] * torch.tensor([4.0, 3, 2, 1]) @ orthogonal(4) for _ in range(3)])
    expected = torch.tensor([0.4, 0.7, 0.9, 1, 1, 1, 1], dtype=torch.float64).expand(3, -1)
    cases += [(matrices, expected), (matrices.mT, expected[:, :4])]
    for number, (matrix, curve) in enumerate(cases):
        found = cumulative_singular_values(matrix)
        torch.testing.assert_close(found, curve, rtol=0, atol=TOLERANCE, msg=f"case {number}")
    assert torch.equal(cumulative_singular_values(torch.zeros(2, 5, 5)), torch.ones(2, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="finite"):
        cumulative_singular_values(torch.full((5, 5), torch.nan))


def test_spectrum_of_a_model_is_the_mean_over_images():
    size = (64, 96)
    model = timm.create_model("softmax_pyramid_pico", img_size=size).eval()
    images = [torch.randn(3, *size) for _ in range(2)]
    spectra = measure_spectrum(model, images)
    # Heads and tokens of each layer; the last stage has a class token.
    places = [(1, 1, 1, 16 * 24), (2, 1, 2, 8 * 12), (3, 1, 4, 4 * 6), (3, 2, 4, 4 * 6), (4, 1, 5, 2 * 3 + 1)]
    assert [(s.stage, s.layer, *s.cumulative.shape) for s in spectra] == places
    assert {s.attention for s in spectra} == {"softmax"}
    single = [measure_spectrum(model, [image]) for image in images]
    for both, first, second in zip(spectra, *single, strict=True):
        np.testing.assert_allclose(both.cumulative, (first.cumulative + second.cumulative) / 2, atol=TOLERANCE)
        assert (np.diff(both.cumulative) >= 0).all()
    assert not any("attend" in vars(module) for module in model.modules())


# The row of one token, and its picture.


SIZE = (72, 104)
GRIDS = [(18, 26), (9, 13), (5, 7), (3, 4)]
IMAGE = torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(0))


def model_of(attention: str, **kwargs):
    torch.manual_seed(0)
    return timm.create_model("soft_pico", attention=attention, img_size=SIZE, **kwargs).eval()


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_row_is_that_of_the_matrix(stage):
    model, seen = model_of("nystrom"), []
    row = attention_row(model, IMAGE, stage, (2, 1))
    with watch_attention(model.stages[stage - 1].blocks[-1].attn, seen.append), torch.no_grad():
        model.forward_features(IMAGE[None])
    height, width = GRIDS[stage - 1]
    # The last stage has a class token in front.
    prefix = model.stages[stage - 1].num_prefix_tokens
    expected = seen[0][0, :, prefix + 2 * width + 1, prefix:].reshape(-1, height, width)
    assert row.feat_size == (height, width)
    np.testing.assert_allclose(row.weights, expected.numpy(), rtol=1e-5, atol=1e-7)
    assert attention_row(model, IMAGE, stage).query == (height // 2, width // 2)


@pytest.mark.parametrize(("options", "grid", "total"), [({}, (9, 13), 16), ({"linear": True}, (7, 7), 1)])
def test_keys_on_a_grid_of_their_own(options, grid, total):
    """Weights of windows of 4 x 4 tokens are those of each token; the last row and column are in no window."""
    row = attention_row(model_of("spatial_reduction", **options), IMAGE, 2)
    assert row.weights.shape[1:] == grid
    np.testing.assert_allclose(row.weights[:, :8, :12].sum((1, 2)), total, rtol=1e-5)


MISTAKES = [({"stage": 0}, "0"), ({"stage": 3, "layer": 2}, "2"), ({"stage": 2, "query": (9, 0)}, "9 0")]


@pytest.mark.parametrize(("arguments", "value"), MISTAKES)
def test_mistakes(arguments, value):
    with pytest.raises(ValueError, match=f"got {value}"):
        attention_row(model_of("soft"), IMAGE, **arguments)


# The models to look at, and where a figure is drawn.


@pytest.mark.parametrize("name", ["soft_pico", "soft_pico.shapes"])
def test_recorded_weights_and_those_of_a_file(name, tmp_path):
    model, title = load_pyramid(name)
    assert title == "soft_pico.shapes, pretrained"
    assert not model.training
    recorded = timm.create_model("soft_pico.shapes", pretrained=True)
    torch.testing.assert_close(model.state_dict(), recorded.state_dict(), rtol=0, atol=0)
    source = timm.create_model("soft_pico", img_size=64, num_classes=7).eval()
    torch.save(source.state_dict(), tmp_path / "epoch_5.pth")
    model, title = load_pyramid(name, (64, 64), checkpoint=tmp_path / "epoch_5.pth")
    assert title == "soft_pico, epoch_5.pth"
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(model.forward_features(x), source.forward_features(x), rtol=0, atol=0)


@pytest.mark.parametrize(("img_size", "expected"), [(None, (224, 224)), ((63, 100), (63, 100))], ids=str)
def test_random_weights_of_a_size(img_size, expected):
    model, title = load_pyramid("linear_pyramid_pico", img_size, pretrained=False)
    assert (model.img_size, title) == (expected, "linear_pyramid_pico, random weights")
