"""Softmax-free attention against the text of its definition, and the ways of sampling bottleneck tokens."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from soft_vit.layers.attention.gaussian import GaussianAttention
from soft_vit.layers.attention.soft import SoftAttention, SoftNormAttention, SoftPlusAttention
from soft_vit.ops.layout import Layout


def released_inverse(a: Tensor, normalize: bool) -> Tensor:
    """The inverses of the kernels `[H, M, M]` of one image, by steps written out."""
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
    scale = a.sum(2).rsqrt() if normalize else torch.ones_like(a[:, 0])
    return scale[:, :, None] * inverse * scale[:, None]


def naive(layer: SoftAttention, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """The definition, head by head and image by image."""
    (height, width), d, r = feat_size, layer.head_dim, layer.sr_ratio
    bandwidth = layer.log_bandwidth.exp() if isinstance(layer, SoftPlusAttention) else torch.ones(layer.num_heads)
    images = []
    for q, v in zip(layer.q(x) / d**0.25, layer.v(x), strict=True):
        kernels, own_kernels, values, local = [], [], [], []
        for head in range(layer.num_heads):
            channels = slice(head * d, (head + 1) * d)
            q_h, v_h = q[:, channels], v[:, channels]
            q_map = q_h.T.reshape(1, d, height, width)
            tokens = F.conv2d(q_map, layer.sample.weight, stride=r)[0].flatten(1).T
            tokens = F.gelu(F.layer_norm(tokens, (d,), layer.sample_norm.weight, layer.sample_norm.bias, 1e-5))
            if isinstance(layer, SoftPlusAttention):
                tokens = tokens / d**0.25
            q_h, tokens = bandwidth[head] * q_h, bandwidth[head] * tokens
            kernels.append(torch.exp(-torch.cdist(q_h, tokens).square() / 2))
            own_kernels.append(torch.exp(-(tokens[:, None] - tokens[None]).square().sum(-1) / 2))
            values.append(v_h)
            kernel = layer.local.weight[head : head + 1]
            v_map = v_h.T.reshape(d, 1, height, width)
            local.append(F.conv2d(v_map, kernel, padding=kernel.shape[-1] // 2).reshape(d, -1).T)
        k1, values, local = map(torch.stack, (kernels, values, local))
        inverse = released_inverse(torch.stack(own_kernels), layer.normalize)
        matrix = k1 @ inverse @ k1.mT
        if isinstance(layer, SoftPlusAttention):
            matrix = matrix / matrix.sum(2, keepdim=True)
        images.append((matrix @ values + local).transpose(0, 1).flatten(1))
    return layer.proj(torch.stack(images))


@pytest.mark.parametrize("cls", [SoftAttention, SoftNormAttention, SoftPlusAttention])
@pytest.mark.parametrize(("sr_ratio", "feat_size"), [(8, (17, 26)), (4, (15, 13)), (2, (7, 9))])
def test_definition(cls, sr_ratio, feat_size):
    layer = cls(24, 3, feat_size=feat_size, sr_ratio=sr_ratio, dtype=torch.float64)
    if layer.log_bandwidth is not None:
        torch.nn.init.normal_(layer.log_bandwidth, 0, 0.3)
    torch.nn.init.normal_(layer.sample_norm.weight, 1, 0.2)
    torch.nn.init.normal_(layer.sample_norm.bias, 0, 0.2)
    x = torch.randn(2, feat_size[0] * feat_size[1], 24, dtype=torch.float64)
    # Row sums are divided by with the square of 0.01 added to theirs.
    rtol = 1e-3 if layer.normalize_rows else 1e-8
    torch.testing.assert_close(layer(x, feat_size), naive(layer, x, feat_size), rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("inverse", ["newton", "cholesky"])
@pytest.mark.parametrize("spread", [0.0, 1.0, 100.0])
def test_normalised_rows_are_averages(dtype, inverse, spread):
    """Between the smallest and the largest value, or near zero far from all bottleneck tokens, in any dtype."""
    layer = SoftPlusAttention(32, 1, feat_size=(64, 80), sr_ratio=8, local_kernel=0, inverse=inverse)
    nn.init.eye_(layer.proj.weight)
    x = 1 + spread * torch.randn(1, 64 * 80, 32)
    wide = layer(x, (64, 80))
    narrow = layer.to(dtype)(x.to(dtype), (64, 80))
    assert narrow.isfinite().all()
    assert wide.abs().max() <= 4 * layer.float().v(x).abs().max()
    if spread <= 1:
        # An average of values of size 1 in a dtype with 8 bits or more.
        torch.testing.assert_close(narrow.float(), wide, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("options", [{"scale_bottleneck": True}, {"learned_bandwidth": True}, {"normalize_rows": True}])
def test_departures_are_off_by_default(options):
    torch.manual_seed(0)
    layers = [SoftAttention(32, 2, feat_size=(8, 8), sr_ratio=2, **given) for given in ({}, options)]
    layers[1].load_state_dict(layers[0].state_dict(), strict=False)
    x = torch.randn(1, 64, 32)
    released, departed = (layer(x, (8, 8)) for layer in layers)
    # A bandwidth of 1 changes nothing before it is learned.
    assert torch.equal(released, departed) == ("learned_bandwidth" in options)
    assert all(getattr(layers[0], name, None) in (None, False) for name in options)


@pytest.mark.parametrize(("sr_ratio", "kernel"), [(8, 9), (4, 5), (2, 3), (1, 3), (7, 9)])
def test_local_kernel_follows_the_reduction(sr_ratio, kernel):
    layer = SoftAttention(64, 2, feat_size=(14, 14), sr_ratio=sr_ratio)
    assert layer.local.weight.shape == (2, 1, kernel, kernel)
    assert SoftAttention(64, 2, feat_size=(14, 14), sr_ratio=sr_ratio, local_kernel=0).local is None


def bottleneck(layer: SoftAttention, q: Tensor) -> Tensor:
    """Bottleneck tokens `[B, heads, M, D]` of query maps `[B, C, H, W]`."""
    heads = q.flatten(2).unflatten(1, (layer.num_heads, -1)).mT
    return layer.sample_bottleneck(heads, Layout(tuple(q.shape[2:])))


@pytest.mark.parametrize("sampling", ["conv", "avg", "random", "first"])
@pytest.mark.parametrize("count", [36, 49, 64, 81])
@pytest.mark.parametrize(("sr_ratio", "side"), [(8, 56), (4, 28), (2, 14)])
def test_number_of_bottleneck_tokens(sampling, count, sr_ratio, side):
    """The paper's ablation: any of these counts in every stage at 224 pixels."""
    layer = SoftAttention(32, 1, feat_size=(side, side), sr_ratio=sr_ratio, sampling=sampling, num_bottleneck=count)
    assert bottleneck(layer, torch.randn(1, 32, side, side)).shape == (1, 1, count, 32)


@pytest.mark.parametrize("sampling", ["conv", "avg", "random", "first"])
def test_capped_bottleneck(sampling):
    layer = SoftAttention(32, 1, feat_size=(28, 28), sr_ratio=4, sampling=sampling, max_bottleneck=(7, 7))
    free = SoftAttention(32, 1, feat_size=(28, 28), sr_ratio=4, sampling=sampling)
    free.load_state_dict(layer.state_dict())
    at_224 = torch.randn(2, 32, 28, 28)
    torch.testing.assert_close(bottleneck(layer.eval(), at_224), bottleneck(free.eval(), at_224), rtol=0, atol=0)
    for size, capped in (((61, 40), 49), ((61, 20), 35), ((12, 80), 21)):
        assert bottleneck(layer, torch.randn(1, 32, *size)).shape[2] == capped


def test_random_tokens_are_distinct_members_of_the_map():
    layer = SoftAttention(32, 1, feat_size=(15, 13), sr_ratio=2, sampling="random")
    q = torch.arange(15 * 13.0).reshape(1, 1, 15, 13)
    for training in (True, False):
        tokens = bottleneck(layer.train(training), q).flatten()
        assert len(tokens.unique()) == len(tokens) == 7 * 6
        assert torch.equal(tokens.sort()[0], tokens)


def test_all_tokens_as_bottleneck_give_the_full_attention():
    """K A^-1 K = K where the bottleneck tokens are the tokens: the decomposition is then exact."""
    soft = SoftAttention(
        16, 2, feat_size=(5, 7), sampling="first", inverse="cholesky", ridge=1e-12, local_kernel=0, dtype=torch.float64
    )
    full = GaussianAttention(16, 2, feat_size=(5, 7), dtype=torch.float64)
    full.load_state_dict(soft.state_dict())
    # Tokens far enough apart for a kernel that a solve without a ridge can take.
    x = 20 * torch.randn(2, 35, 16, dtype=torch.float64)
    torch.testing.assert_close(soft(x, (5, 7)), full(x, (5, 7)), rtol=1e-7, atol=1e-9)


def test_a_bottleneck_that_the_map_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="2 x 3 tokens, got num_bottleneck=9"):
        SoftAttention(32, 1, feat_size=(2, 3), num_bottleneck=9)


def test_a_map_without_a_window_is_refused():
    layer = SoftAttention(32, 1, feat_size=(8, 8), sr_ratio=8)
    with pytest.raises(ValueError, match="map of 7 x 9"):
        layer(torch.randn(1, 63, 32), (7, 9))


class Doubled(torch.nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("name", ["q", "v", "proj"])
def test_a_replaced_projection_is_called(name):
    layer = SoftAttention(16, 2, feat_size=(5, 7), sr_ratio=2, dtype=torch.float64)
    x = torch.randn(2, 35, 16, dtype=torch.float64)
    plain, linear = layer(x, (5, 7)), getattr(layer, name)
    weights = {key: value.clone() for key, value in linear.state_dict().items()}
    doubled = Doubled(16, 16, dtype=torch.float64)
    doubled.load_state_dict(weights)
    setattr(layer, name, doubled)
    changed = layer(x, (5, 7))
    assert not torch.allclose(changed, plain)
    expected = SoftAttention(16, 2, feat_size=(5, 7), sr_ratio=2, dtype=torch.float64)
    expected.load_state_dict(layer.state_dict())
    getattr(expected, name).load_state_dict({key: 2 * value for key, value in weights.items()})
    torch.testing.assert_close(changed, expected(x, (5, 7)))


def small_attention() -> tuple[SoftAttention, torch.Tensor]:
    torch.manual_seed(0)
    attn = SoftAttention(16, 2, feat_size=(6, 9), sr_ratio=3, newton_gradient="closed_form").double()
    return attn, torch.randn(2, 54, 16, dtype=torch.float64)


def test_transforms_of_functions():
    attn, x = small_attention()
    closed_form = attn.options
    attn.options = replace(closed_form, newton_gradient="unrolled")
    x.requires_grad_()
    (expected,) = torch.autograd.grad(attn(x, (6, 9)).square().sum(), x)
    attn.options = closed_form
    grad = torch.func.grad(lambda x: attn(x, (6, 9)).square().sum())(x)
    torch.testing.assert_close(grad, expected)
    attn.requires_grad_(False)
    each = torch.func.vmap(lambda x: attn(x[None], (6, 9))[0])(x.detach())
    torch.testing.assert_close(each, attn(x.detach(), (6, 9)))


def test_layers_without_bias():
    attn, x = small_attention()
    attn.proj = nn.Linear(16, 16, bias=False).double()
    assert attn(x, (6, 9)).isfinite().all()


class LargestCast(TorchDispatchMode):
    """The number of elements of the largest tensor that changes its dtype."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and out.dtype != args[0].dtype:
            self.elements = max(self.elements, out.numel())
        return out


def test_autocast_casts_no_weight_for_each_image():
    attention = SoftAttention(48, 3, feat_size=(6, 4), sr_ratio=2)
    x = torch.randn(5, 24, 48, requires_grad=True)
    with LargestCast() as largest, torch.autocast("cpu", dtype=torch.bfloat16):
        attention(x, (6, 4)).float().sum().backward()
    assert 0 < largest.elements <= max(x.numel(), 48 * 48)
    assert attention.q.weight.grad.dtype == x.grad.dtype == torch.float32


@pytest.mark.parametrize("name", ["q", "sample", "local", "proj"])
def test_pruned_layers_can_be_trained(name):
    attn, x = small_attention()
    layer = attn.get_submodule(name)
    prune.l1_unstructured(layer, "weight", 0.5)
    for _ in range(2):
        attn(x, (6, 9)).square().sum().backward()
    assert layer.weight_orig.grad.count_nonzero() > 0
    # What is pruned is not learned.
    assert not layer.weight_orig.grad[layer.weight_mask == 0].any()
