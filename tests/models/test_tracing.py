"""Feature extraction by torch.fx as timm does it, and gradients of every image by vmap."""

import pytest
import timm
import torch
from captured_models import create, images
from models.zoo.families import SHALLOW, SMALL
from timm.models import create_feature_extractor, get_graph_node_names
from torch import Tensor, nn

from soft_vit.models.pyramid import PyramidViT

# A name, and what makes the model small.
MODELS: dict[str, tuple[str, dict]] = {
    **{name: (name, SHALLOW) for name in ("soft_pico", "soft_norm_pico", "soft_plus_pico", "local_pyramid_pico")},
    "reversible": ("soft_pico", {"reversible": True}),
    **SMALL,
    "performer_vit": ("performer_vit_tiny_patch16", {"depth": 2}),
    "local_vit": ("local_vit_tiny_patch16", {"depth": 2, "dynamic_img_size": True}),
}


@pytest.mark.parametrize(("name", "options"), MODELS.values(), ids=MODELS)
def test_features_of_a_graph_equal_those_of_the_model(name, options):
    """Bit for bit, with gradients and in inference, at the size that was traced and at another."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).eval()
    assert isinstance(model, nn.Module)
    last = get_graph_node_names(model)[1][-1]
    traced = create_feature_extractor(model, [last])
    sizes = [(224, 224)] if isinstance(model, timm.models.VisionTransformer) else [(64, 64), (64, 96)]
    for size in [(64, 144)] if options.get("dynamic_img_size") else sizes:
        x = torch.randn(2, 3, *size)
        with torch.no_grad():
            assert torch.equal(traced(x)[last], model(x))
        results = [gradients(lambda x: traced(x)[last], x), gradients(model, x)]
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def gradients(forward, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    logits = forward(x)
    return logits.detach(), torch.autograd.grad(logits.square().sum(), x)[0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["soft_pico", "local_pyramid_pico"])
def test_gradients_of_every_image_by_vmap(name):
    model, x = create({"model_name": name}), images()
    assert isinstance(model, PyramidViT)
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    model(x).square().sum().backward()
    scale = max(p.grad.norm() for p in model.parameters())
    for n, p in model.named_parameters():
        # Gradients that cancel are held against the largest.
        assert (each[n].sum(0) - p.grad).norm() <= 1e-4 * max(p.grad.norm(), 1e-3 * scale), n
