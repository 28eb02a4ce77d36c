"""Models by name with variants; the naive one is the same function with the same gradients."""

import pytest
import timm
import torch

from benchmarks.naive import naive_formulation, naive_soft_attention
from benchmarks.registry import create_variant
from soft_vit.layers.attention.soft import SoftAttention
from soft_vit.ops import soft_attention_reference


@pytest.mark.parametrize(
    ("name", "backend"), [("soft_pico", None), ("soft_pico+eager", "eager"), ("soft_norm_pico+folded+triton", "triton")]
)
def test_every_attention_has_the_backend(name, backend):
    attentions = [module for module in create_variant(name).modules() if isinstance(module, SoftAttention)]
    assert attentions
    assert {attention.backend for attention in attentions} == {backend}


@pytest.mark.parametrize(("normalize", "start", "ridge"), [(False, "rowsum", 0.01), (True, "guarded_image", 0.0)])
def test_operator(normalize, start, ridge):
    q, bottleneck, v = (torch.randn(2, 3, n, 8, dtype=torch.float64, requires_grad=True) for n in (63, 6, 63))
    options = {"normalize": normalize, "ridge": ridge}
    gradient = "unrolled" if normalize else "closed_form"
    naive = naive_soft_attention(q, bottleneck, v, start=start, **options)
    expected = soft_attention_reference(q, bottleneck, v, newton_start=start, newton_gradient=gradient, **options)
    torch.testing.assert_close(naive, expected)
    target = torch.randn_like(naive)
    # A detached start: the released backward is that of the inverse alone, which the reference's also is.
    for actual, wanted in zip(
        *(torch.autograd.grad(x, (q, bottleneck, v), target) for x in (naive, expected)), strict=True
    ):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("name", ["soft_pico", "soft_norm_pico"])
def test_model(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5).double().eval()
    x = torch.randn(2, 3, 65, 97, dtype=torch.float64)
    logits = model(x)
    naive = naive_formulation(model)
    assert naive is model
    torch.testing.assert_close(naive(x), logits)
