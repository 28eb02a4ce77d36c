"""The naive formulation is the same function with the same gradients."""

import pytest
import timm
import torch

import soft_vit  # noqa: F401 - registers the models
from soft_vit.analysis.naive import naive_formulation, naive_soft_attention
from soft_vit.ops import soft_attention_reference


@pytest.mark.parametrize(("normalize", "start", "ridge"), [(False, "rowsum", 0.01), (True, "guarded_image", 0.0)])
def test_operator(normalize, start, ridge):
    q, bottleneck, v = (torch.randn(2, 3, n, 8, dtype=torch.float64, requires_grad=True) for n in (63, 6, 63))
    options = {"normalize": normalize, "start": start, "ridge": ridge}
    gradient = "unrolled" if normalize else "closed_form"
    naive = naive_soft_attention(q, bottleneck, v, **options)
    expected = soft_attention_reference(q, bottleneck, v, gradient=gradient, **options)
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


def test_nothing_to_replace():
    with pytest.raises(ValueError, match="no softmax-free attention"):
        naive_formulation(timm.create_model("softmax_pyramid_pico"))
