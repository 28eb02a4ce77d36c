"""The fused kernels against the reference in float64, compared with the eager form in the same dtype."""

import itertools

import pytest
import torch
from released import relative_error

from soft_vit.ops import soft_attention, soft_attention_reference
from soft_vit.ops.soft.triton import tiling
from soft_vit.ops.soft.triton.support import INTERPRETED

ROWSUM = dict(inverse="newton", newton_start="rowsum", ridge=0.01)
GUARDED = dict(inverse="newton", newton_start="guarded_image", ridge=0.0)
CHOLESKY = dict(inverse="cholesky", ridge=0.01)
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """Store x `[B, H, N, D]` like feature maps, like tokens, as one third of a larger tensor, or contiguously."""
    if layout == "maps":
        return x.mT.contiguous().mT
    if layout == "tokens":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "thirds":
        return x.unsqueeze(3).expand(-1, -1, -1, 3, -1).contiguous()[:, :, :, 1]
    return x.contiguous()


def inputs(
    device: str,
    n: int,
    m: int,
    d: int,
    dv: int | None = None,
    batch: int = 1,
    heads: int = 1,
    dtype: torch.dtype = FP32,
    bottleneck_dtype: torch.dtype | None = None,
    layout: str = "maps",
    spread: float = 0.5,
    offset: float = 0.0,
    residual: bool = False,
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = {"q": (n, d), "bottleneck": (m, d), "v": (n, dv or d), "residual": (n, dv or d)}
    tensors = {name: torch.randn(batch, heads, *size, generator=generator) for name, size in sizes.items()}
    if not residual:
        del tensors["residual"]
    for name, x in tensors.items():
        scale, shift = (spread, offset) if name in ("q", "bottleneck") else (1.0, 0.0)
        kind = bottleneck_dtype or dtype if name == "bottleneck" else dtype
        x = (x * scale + shift).to(device, kind)
        tensors[name] = (x if name == "bottleneck" else laid_out(x, layout)).requires_grad_()
    return tensors


def reference(residual: torch.Tensor | float = 0.0, **arguments: object) -> torch.Tensor:
    return soft_attention_reference(**arguments) + residual


def outputs_and_gradients(function, tensors: dict, variant: dict, cast=lambda x: x) -> dict[str, torch.Tensor]:
    """The result x and the gradient of every input by name, of `function` on the inputs after `cast`.

    The gradient of the result is rounded to the dtype of v before the cast, so that it is the same for all forms.
    """
    bits = tensors["v"].dtype
    tensors = {name: cast(x.detach()).requires_grad_() for name, x in tensors.items()}
    # Changed in place, as results may be.
    out = function(**tensors, **variant).add_(0)
    target = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(bits).to(out)
    gradients = torch.autograd.grad(out, list(tensors.values()), target)
    return {"x": out.detach(), **dict(zip((f"d{name}" for name in tensors), gradients, strict=True))}


def strides(x: torch.Tensor) -> list[int]:
    """Of the dimensions that have one."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def check(tensors: dict, variant: dict) -> None:
    """At most twice the error of eager in the same dtype, both against float64, or 16 roundings of the products.

    Results are laid out like inputs.
    """
    fused = outputs_and_gradients(soft_attention, tensors, dict(variant, backend="triton"))
    eager = outputs_and_gradients(soft_attention, tensors, dict(variant, backend="eager"))
    exact = outputs_and_gradients(reference, tensors, variant, torch.Tensor.double)
    # With 16 bits, fp32 operands of a product are two bf16 terms: 17 bits.
    rounding = torch.finfo(FP32).eps if tensors["v"].dtype == FP32 else 2.0**-17
    assert fused.keys() == eager.keys()
    for name, value in exact.items():
        assert fused[name].dtype == eager[name].dtype, name
        assert fused[name].shape == eager[name].shape, name
        # The gradient of the residual is that of the result.
        if name != "dresidual":
            like = tensors["v" if name == "x" else name.removeprefix("d")]
            assert strides(fused[name]) == strides(torch.empty_like(like)), name
        fused_error, eager_error = relative_error(fused[name], value), relative_error(eager[name], value)
        assert fused_error <= 2 * eager_error + 16 * rounding, f"{name}: {fused_error:.1e}, eager {eager_error:.1e}"


# Each kernel once.
SMALL = [
    (dict(n=33, m=6, d=16, heads=2), ROWSUM),
    (dict(n=5, m=2, d=8, dv=7, layout="heads"), GUARDED),
    (dict(n=63, m=20, d=20, dv=33, residual=True, layout="tokens"), dict(CHOLESKY, normalize=True)),
    (dict(n=130, m=49, d=32, dtype=BF16, residual=True), ROWSUM),
    (dict(n=65, m=6, d=32, dtype=BF16, bottleneck_dtype=FP32), dict(GUARDED, normalize=True)),
    (dict(n=33, m=16, d=16, batch=2, layout="tokens"), dict(GUARDED, normalize=True, newton_iters=5)),
    (dict(n=33, m=70, d=16), dict(GUARDED, normalize=True)),
]
# Branches, and inputs on which rounding is amplified.
MORE = [
    (dict(n=63, m=6, d=16, layout="thirds"), CHOLESKY),
    (dict(n=66, m=70, d=16, dtype=BF16), dict(CHOLESKY, normalize=True)),
    (dict(n=520, m=4, d=16), dict(ROWSUM, newton_iters=3)),
    # Wide heads have narrower blocks of bottleneck tokens than the part between them.
    (dict(n=33, m=40, d=72, dv=16, dtype=BF16), dict(ROWSUM, normalize=True)),
    # A flat kernel with an exact inverse: the gradient of the bottleneck tokens is a difference of large sums.
    (dict(n=65, m=25, d=32, dtype=FP16, bottleneck_dtype=FP32, spread=0.03), CHOLESKY),
    # Tokens close together and away from zero: the gradient is a small difference of products and sums.
    (dict(n=2, m=1, d=16, dtype=FP16, bottleneck_dtype=FP32, spread=0.01, offset=1.0), dict(GUARDED, normalize=True)),
]
VARIANTS = (ROWSUM, dict(GUARDED, normalize=True), dict(CHOLESKY, normalize=True))
# Every size with every dtype and every variant, layouts and fp32 bottleneck tokens in turn.
LARGE = [
    (
        dict(n=n, m=m, d=d, dtype=dtype, spread=0.3, batch=2, heads=3, residual=True)
        | dict(bottleneck_dtype=(dtype, FP32)[(i + j) % 2], layout=("maps", "tokens")[i % 2]),
        VARIANTS[(i + j) % 3],
    )
    for (i, (n, m, d)), (j, dtype) in itertools.product(
        enumerate(((785, 49, 32), (3136, 50, 64), (785, 196, 32), (500, 100, 128), (784, 16, 16), (65, 9, 64))),
        enumerate((FP32, BF16, FP16)),
    )
] + [
    (dict(n=1, m=1, d=1), ROWSUM),
    (dict(n=130, m=1, d=32), dict(GUARDED, normalize=True)),
    (dict(n=33, m=6, d=16, batch=3), dict(ROWSUM, newton_iters=0)),
    # The inverse of tokens on a line amplifies the rounding of sums most.
    (dict(n=1, m=49, d=1, dtype=BF16, spread=0.3), CHOLESKY),
    (dict(n=65, m=25, d=32, dtype=BF16, bottleneck_dtype=FP32, spread=0.1), CHOLESKY),
    (dict(n=65, m=49, d=32, dtype=BF16, bottleneck_dtype=FP32, spread=0.05), CHOLESKY),
]


def name_of(value: object) -> str | None:
    if isinstance(value, dict):
        return "-".join(f"{key}={entry}".removeprefix("dtype=torch.") for key, entry in value.items())
    return None


SIZES = [*SMALL, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE + LARGE)]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("sizes", "variant"), SIZES, ids=name_of)
def test_error(device, sizes, variant):
    check(inputs(device, **sizes), variant)


HARD = [
    pytest.param(*case, marks=() if i == 4 else pytest.mark.slow)
    for i, case in enumerate(
        itertools.product((FP16, FP32, BF16), (ROWSUM, dict(GUARDED, normalize=True), CHOLESKY), (0.0, 1.0, 1e4))
    )
]


@pytest.mark.parametrize(("dtype", "variant", "value"), HARD, ids=name_of)
def test_hard_inputs_stay_finite(device, dtype, variant, value):
    tensors = inputs(device, n=33, m=5, d=16, dtype=dtype)
    token = torch.randn(16, generator=torch.Generator().manual_seed(2)).to(device)
    with torch.no_grad():
        for name in ("q", "bottleneck"):
            # Equal tokens; of magnitude 1e4, tokens apart by that much.
            tensors[name].copy_(tensors[name] * 1e4 if value == 1e4 else token * value)
    fused = outputs_and_gradients(soft_attention, tensors, dict(variant, backend="triton"))
    eager = outputs_and_gradients(soft_attention, tensors, dict(variant, backend="eager"))
    for name, value in fused.items():
        assert value.isfinite().all(), name
    torch.testing.assert_close(fused["x"], eager["x"], rtol=2e-2 if dtype == BF16 else 2e-3, atol=1e-5)


def test_not_a_number_is_not_hidden(device):
    tensors = inputs(device, n=33, m=5, d=16, heads=2)
    with torch.no_grad():
        tensors["q"][0, 0, 7] = torch.nan
    x = soft_attention(**tensors, backend="triton")
    assert x[0, 0].isnan().all()
    assert x[0, 1].isfinite().all()


@pytest.mark.parametrize("backend", ["triton", "eager"])
@pytest.mark.parametrize("m", [49, 70])
def test_a_kernel_without_a_factor_gives_nan(device, backend, m):
    """Tokens close together and far from zero, where rounding of distances exceeds the ridge."""
    tensors = inputs(device, n=33, m=m, d=16)
    with torch.no_grad():
        tensors["bottleneck"].mul_(0.1).add_(1e3)
    assert soft_attention(**tensors, inverse="cholesky", backend=backend).isnan().all()


def test_image_does_not_depend_on_its_batch(device, monkeypatch):
    """In two chunks of tokens, of which the interpreter would take long at their own size."""
    n = 520
    if INTERPRETED:
        n = 41
        monkeypatch.setattr(tiling, "CHUNK", 32)
    tensors, variant = inputs(device, n=n, m=5, d=16, batch=2, heads=2), dict(GUARDED, normalize=True, newton_iters=2)
    with torch.no_grad():
        # Other heads of an image move its step size, other images do not.
        tensors["bottleneck"][0] *= 0.1
        tensors["bottleneck"][1, 0] *= 0.1
    together = soft_attention(**tensors, **variant, backend="triton")
    alone = soft_attention(**{name: x[1:] for name, x in tensors.items()}, **variant, backend="triton")
    torch.testing.assert_close(alone, together[1:], rtol=0, atol=0)


@pytest.mark.skipif(INTERPRETED, reason="programs of the interpreter run one after the other")
def test_same_bits_in_every_run(device):
    tensors = inputs(device, n=520, m=5, d=16)
    first, second = (outputs_and_gradients(soft_attention, tensors, dict(backend="triton")) for _ in range(2))
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.slow
def test_autocast_changes_nothing(device):
    """Also where the m x m part runs as batched products, which autocast would take for its own."""
    tensors = inputs(device, n=17, m=70, d=16, dtype=BF16, bottleneck_dtype=FP32)
    plain = outputs_and_gradients(soft_attention, tensors, dict(backend="triton"))
    with torch.autocast(device, dtype=BF16):
        under = outputs_and_gradients(soft_attention, tensors, dict(backend="triton"))
    for name in plain:
        assert torch.equal(plain[name], under[name]), name
